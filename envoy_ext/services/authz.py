"""May a request start at all? The delivery hop's repeat rules, for routes that do not pass through it."""

import contextlib
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import assert_never

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.tool_verdict import find_obstacle
from envoy_ext.ports import Store
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.repeat_rules import (
    RunsAgain,
    StillRuns,
    WasAnswered,
    build_incomplete_error,
    build_running_error,
    build_tool_error,
    decide_repeat,
)


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

    def __init__(self, exchanges: Exchanges, journal: Store) -> None:
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
        """The rules for a repeat, as far as they need no body.

        A completed operation is let on: only where its body is known to be the same can its answer be given.
        One that runs is not, though a repeat at the ingress might wait for it: here nobody could keep it.
        """
        key_hash = sha256(key.encode()).hexdigest()
        try:
            return await self._decide_key(request, key_hash)
        except JournalUnavailable:
            message = "The gateway cannot look up the idempotency key, so it does not run the request."
            return ClientError("upstream_unavailable", request.request_id, message=message, retry_after_s=1)

    async def _decide_key(self, request: CheckRequest, key_hash: str) -> ClientError | None:
        earlier = await self._journal.find_by_key(request.caller, request.path, key_hash)
        if earlier is None or (earlier.request_id == request.request_id and not request.upstream_retry):
            # The operation of this very request: Envoy may ask about one request more than once.
            return None
        repeat = decide_repeat(request.request_id, None, earlier)
        match repeat:
            case WasAnswered():
                return None
            case StillRuns():
                return build_running_error(request.request_id, repeat.operation_id)
            case RunsAgain():
                calls = await self._journal.read_calls(repeat.ledger_id)
                obstacle = find_obstacle(calls)
                if obstacle is None:
                    return None
                return build_tool_error(request.request_id, repeat.after, obstacle)
            case ClientError():
                return repeat
            case _:
                assert_never(repeat)

    async def _refuse_incomplete(self, request: CheckRequest, operation_id: OperationId) -> ClientError:
        earlier = None
        with contextlib.suppress(JournalUnavailable):  # then the refusal says less, but stands
            earlier = await self._journal.get(operation_id)
        return build_incomplete_error(request.request_id, operation_id, earlier)
