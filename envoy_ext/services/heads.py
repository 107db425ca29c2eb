"""What is decided of a request by its headers alone: who asks, for which API, and as what.

The same functions answer for the delivery filter and for ext_authz, so both say the same. They look at
nothing but their arguments. What needs the body stands in `services.admission`.
"""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.api import MODELS_PATH, ApiFamily, match_api
from envoy_ext.domain.callers import (
    ALL_RIGHTS,
    CHALLENGE,
    DENIED,
    INVALID_KEY,
    CallerRules,
    Credentials,
    Rights,
    UnknownCaller,
    decide_caller,
)
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.ports import Clock
from envoy_ext.services.admission import AdmissionRules, Arrival


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The headers of a request: read, and judged by nobody."""

    method: str
    path: str
    """With its query."""
    request_id: str
    credentials: Credentials
    credential_hash: str
    """"" without one: what a caller is known by where no credential is checked."""
    forged: tuple[str, ...] = ()
    """The names of those that pass for headers of Envoy's or ours."""
    too_many: str | None = None
    """The limit that its headers are beyond, in words."""
    mistakes: tuple[str, ...] = ()
    """What cannot be understood of them, in the order in which it is to be told."""
    idempotency_key: str | None = None
    deadline_s: float | None = None
    request_class: str | None = None
    data_class: str | None = None
    content_encoding: str = ""
    content_length: int | None = None
    """What is said of the body's length, None where nothing is."""
    upstream_retry: bool = False
    prefer_wait_s: float | None = None
    respond_async: bool = False
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who a request is from."""

    id: str
    """For the journal and the queue."""
    name: str | None = None
    """None where no credential is checked."""
    rights: Rights = ALL_RIGHTS


def decide_sender(head: RequestHead, rules: CallerRules | None, wall: float) -> Sender | ClientError:
    """Who asks; or that this may not be anybody. Before anything else is said, of paths or of models."""
    if head.too_many is not None:
        return _refuse(head, head.too_many, 431)
    if rules is None:
        return Sender(head.credential_hash)
    caller = decide_caller(head.credentials, rules, wall)
    if isinstance(caller, UnknownCaller):
        return ClientError(INVALID_KEY, head.request_id, message=caller.message, headers=(CHALLENGE,))
    return Sender(caller.id, caller.name, caller.rights)


def decide_head(
    head: RequestHead, sender: Sender, pass_through: tuple[str, ...], max_request_bytes: int
) -> Arrival | ClientError:
    """The request as far as its headers tell it, with no body; or what is wrong with them."""
    family = match_api(head.method, head.path)
    if family is None and not head.path.startswith(pass_through):
        return _refuse(head, f"{head.method} on this path is not served here", 404)
    for mistake in head.mistakes:
        return _refuse(head, mistake)
    request_class = _choose(head, "x-request-class", head.request_class or None, sender.rights.classes)
    if isinstance(request_class, ClientError):
        return request_class
    data_class = _choose(head, "x-data-class", head.data_class, sender.rights.data_classes)
    if isinstance(data_class, ClientError):
        return data_class
    if head.content_length is not None and head.content_length > max_request_bytes:
        return ClientError("request_too_large", head.request_id)
    return Arrival(
        family=ApiFamily.OTHER if family is None else family,
        path=head.path,
        body=b"",
        content_encoding=head.content_encoding,
        request_id=head.request_id,
        caller=sender.id,
        idempotency_key=head.idempotency_key,
        deadline_s=head.deadline_s,
        request_class=request_class,
        data_class=data_class,
        upstream_retry=head.upstream_retry,
        prefer_wait_s=head.prefer_wait_s,
        rights=sender.rights,
        respond_async=head.respond_async,
        content_type=head.content_type,
    )


class Heads:
    """Both, by a configuration's rules and by who is let in at this moment."""

    def __init__(self, rules: AdmissionRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock

    @property
    def trusted_header(self) -> str | None:
        """The header that may name a request's caller."""
        return None if self._rules.read_callers is None else self._rules.read_callers().trusted_header

    def list_credentials(self) -> tuple[str, ...]:
        """The headers that callers are known by here, and that are nobody else's business: no replica's."""
        if self._rules.read_callers is None:
            return ()
        callers = self._rules.read_callers()
        named = () if callers.trusted_header is None else (callers.trusted_header,)
        return (*named, *(CREDENTIALS if callers.checks_keys else ()))

    def decide_sender(self, head: RequestHead) -> Sender | ClientError:
        """Who asks, or that this may not be anybody."""
        callers = self._rules.read_callers
        return decide_sender(head, None if callers is None else callers(), self._clock.wall())

    def decide_head(self, head: RequestHead, sender: Sender) -> Arrival | ClientError:
        """The request without its body, or why that is not waited for."""
        return decide_head(head, sender, self._rules.pass_through, self._rules.max_request_bytes)

    def list_models(self, head: RequestHead, sender: Sender) -> tuple[str, ...] | None:
        """What is answered to one who asks for the models; None where that is not asked, or the engine of the
        one pool is to answer."""
        asks = is_models_list(head.method, head.path)
        return self._rules.directory.list_models(sender.rights) if asks else None


CREDENTIALS: Final = ("authorization", "x-api-key", "api-key")
"""Where a credential may stand, apart from the trusted header."""


def read_operation_path(method: str, path: str) -> str | None:
    """The id in `GET /v1/operations/{id}`, None for every other request. Of a HEAD Envoy drops the body."""
    place, _, operation_id = path.partition("?")[0].rpartition("/")
    asks = method in ("GET", "HEAD") and place == "/v1/operations"
    return operation_id if asks and operation_id else None


def is_models_list(method: str, path: str) -> bool:
    """Whether a request asks which models there are."""
    return method in ("GET", "HEAD") and path.partition("?")[0] == MODELS_PATH


def _choose(
    head: RequestHead, name: str, given: str | None, allowed: tuple[str, ...]
) -> str | ClientError | None:
    """The class that a request is of: what it says, if its caller may say so; else the caller's first."""
    if not allowed or given in allowed:
        return given
    if given is None:
        return allowed[0]
    message = f"{name}: this caller may not name that class; it may name {', '.join(allowed)}"
    return ClientError(DENIED, head.request_id, message=message)


def _refuse(head: RequestHead, message: str, status: int | None = None) -> ClientError:
    return ClientError("invalid_request", head.request_id, message=message, status=status)
