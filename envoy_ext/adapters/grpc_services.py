"""What Envoy's calls are answered with, for whichever transport carries them."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from envoy_ext.adapters.accesslog import AccessLogSession
from envoy_ext.adapters.extproc_session import Outbox, Session
from envoy_ext.domain import names
from envoy_ext.ports import Observer

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
STREAM_ACCESS_LOGS: Final = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
CHECK: Final = "/envoy.service.auth.v3.Authorization/Check"

MESSAGE_OVERHEAD_BYTES: Final = 1 << 20
"""Room in a gRPC message for what is not the body: headers, attributes, framing."""

NO_ROLE: Final = f"initial metadata {names.ROLE_METADATA} names no role here"
NOT_TRUTHFUL: Final = "the stream cannot be ended truthfully"


@dataclass(frozen=True, slots=True)
class Services:
    """A session for each ext_proc stream, by its filter's role; one for each log stream; and one decision."""

    delivery: Callable[[Outbox], Session]
    attempt: Callable[[Outbox], Session]
    access_log: Callable[[], AccessLogSession]
    check: Callable[[Any], Awaitable[Any]]
    """Answers a CheckRequest of ext_authz."""
    observer: Observer
    max_request_bytes: int
    tool: Callable[[Outbox], Session] | None = None
    caller: Callable[[Outbox], Session] | None = None
    run: Callable[[Outbox], Session] | None = None

    def find_processor(self, role: str) -> Callable[[Outbox], Session] | None:
        """What builds the session of a filter's stream; None for a role that there is not."""
        processors = {
            names.ROLE_DELIVERY: self.delivery,
            names.ROLE_ATTEMPT: self.attempt,
            names.ROLE_TOOL: self.tool,
            names.ROLE_CALLER: self.caller,
            names.ROLE_RUN: self.run,
        }
        return processors.get(role)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that is taken."""
        return self.max_request_bytes + MESSAGE_OVERHEAD_BYTES


def is_listened_at(path: str) -> bool:
    """Whether a process listens at this socket; one that is stopped, or too busy to accept, does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
