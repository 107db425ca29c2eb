"""May a request start at all? The delivery hop's repeat rules, for routes that do not pass through it."""

import contextlib
from dataclasses import dataclass, replace
from hashlib import sha256

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.ports import Journal
from envoy_ext.services.admission import build_incomplete_error
from envoy_ext.services.exchanges import Exchanges


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What ext_authz knows of a request: headers only, no body."""

    path: str
    request_id: str
    caller: str
    idempotency_key: str | None
    exchange_id: str | None
    """Set when the request comes from our own ingress hop: an attempt, not a client's request."""
    upstream_retry: bool


class Authz:
    """Allows what nothing speaks against. Asking twice takes nothing and answers the same."""

    def __init__(self, exchanges: Exchanges, journal: Journal) -> None:
        self._exchanges = exchanges
        self._journal = journal

    async def check(self, request: CheckRequest) -> ClientError | None:
        """The error to deny with, None to allow."""
        if request.exchange_id is not None:
            exchange = self._exchanges.find(request.exchange_id)
            if exchange is not None and exchange.committed:
                identity = exchange.identity
                return ClientError("replay_not_allowed", identity.request_id, identity.operation_id)
            return None
        closed = self._exchanges.find_closure(request.request_id)
        if closed is not None:
            return replace(closed, retry_after_s=1)
        if request.upstream_retry:
            operation_id = self._exchanges.repeats.find_delivered(
                request.caller, request.path, request.request_id
            )
            if operation_id is not None:
                return await self._refuse_incomplete(request, operation_id)
        if request.idempotency_key is None:
            return None
        return await self._check_key(request, request.idempotency_key)

    async def _check_key(self, request: CheckRequest, key: str) -> ClientError | None:
        key_hash = sha256(key.encode()).hexdigest()
        try:
            earlier = await self._journal.find_by_key(request.caller, request.path, key_hash)
        except JournalUnavailable:
            message = "The gateway cannot look up the idempotency key, so it does not run the request."
            return ClientError("upstream_unavailable", request.request_id, message=message, retry_after_s=1)
        if earlier is None or (earlier.request_id == request.request_id and not request.upstream_retry):
            # The operation of this very request: Envoy may ask about one request more than once.
            return None
        if earlier.state is OperationState.RUNNING:
            return ClientError(
                "operation_in_progress", request.request_id, earlier.operation_id, retry_after_s=1
            )
        if earlier.state is not OperationState.COMPLETED and earlier.partly_delivered:
            return build_incomplete_error(request.request_id, earlier.operation_id, earlier)
        return None

    async def _refuse_incomplete(self, request: CheckRequest, operation_id: OperationId) -> ClientError:
        earlier = None
        with contextlib.suppress(JournalUnavailable):  # then the refusal says less, but stands
            earlier = await self._journal.get(operation_id)
        return build_incomplete_error(request.request_id, operation_id, earlier)
