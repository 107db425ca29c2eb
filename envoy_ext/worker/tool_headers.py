"""Which request a task serves, for whatever calls tools on its behalf.

A contextvar: tasks that the serving task starts see it too; a thread does when it is started with
`asyncio.to_thread`, or by a copy of the context.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from envoy_ext.domain.names import ATTEMPT, OPERATION

_NAMES: Final = {name.encode(): name for name in (OPERATION, ATTEMPT)}
_SERVED: Final[ContextVar[dict[str, str] | None]] = ContextVar("envoy_ext_tool_headers", default=None)


def tool_headers() -> dict[str, str]:
    """The headers that a tool call must carry; empty where no request of the gateway's is served."""
    return dict(_SERVED.get() or {})


@contextmanager
def serving(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
    """Within it, calls of tools are made for the request with these headers (as ASGI has them)."""
    given = {_NAMES[name]: value.decode("latin-1") for name, value in headers if name in _NAMES}
    token = _SERVED.set(given)
    try:
        yield
    finally:
        _SERVED.reset(token)
