"""Which operation a request repeats, while the journal is too slow to ask or has no key to go by.

Two ways to be a repeat: the same idempotency key, or an Envoy or mesh in front of us that says so
(`x-envoy-attempt-count` above 1) under the same request id. The second is believed because it can
only restrict the sender's own request.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from envoy_ext.domain.exchange import Exchange
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.outcomes import Ending
from envoy_ext.services.admission import Arrival

REMEMBERED = 4096
"""Exchanges that are remembered for a mesh's retry, which comes within seconds: so many interrupted ones, and
so many of all that have ended."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What an upstream retry has in common with the request it repeats."""

    caller: str
    path: str
    request_id: str
    body_sha256: str


class Repeats:
    """The live and the recently interrupted exchanges, by what a repeat would show."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str], OperationId] = {}
        self._claims: dict[OperationId, tuple[str, str, str]] = {}
        self._live: dict[RequestKey, Exchange] = {}
        self._interrupted: OrderedDict[RequestKey, OperationId] = OrderedDict()
        self._ledgers: OrderedDict[RequestKey, OperationId] = OrderedDict()
        """Of those that have ended."""
        self._listeners: list[Callable[[OperationId], None]] = []

    def on_free(self, listener: Callable[[OperationId], None]) -> None:
        """Call it with each operation that has given its key back."""
        self._listeners.append(listener)

    def claim_key(
        self, caller: str, path: str, key_hash: str, operation_id: OperationId
    ) -> OperationId | None:
        """Take an idempotency key for an operation; the one that has it, when it is taken."""
        claim = (caller, path, key_hash)
        holder = self._keys.setdefault(claim, operation_id)
        if holder != operation_id:
            return holder
        self._claims[operation_id] = claim
        return None

    def free_key(self, operation_id: OperationId) -> None:
        """Give back the key that this operation holds, if it holds one."""
        claim = self._claims.pop(operation_id, None)
        if claim is not None:
            del self._keys[claim]
            for listener in self._listeners:
                listener(operation_id)

    def holds_key(self, operation_id: OperationId) -> bool:
        """Whether this operation has its key."""
        return operation_id in self._claims

    def add(self, key: RequestKey, exchange: Exchange) -> None:
        """An exchange is in flight."""
        self._live[key] = exchange

    def remove(self, key: RequestKey, exchange: Exchange) -> None:
        """An exchange has ended; an interrupted one is remembered for a while."""
        if self._live.get(key) is exchange:
            del self._live[key]
        _remember(self._ledgers, key, _find_ledger(exchange))
        resolution = exchange.resolution
        if exchange.partly_delivered and resolution is not None and resolution.ending is not Ending.FINISHED:
            _remember(self._interrupted, key, exchange.identity.operation_id)

    def find_delivered(self, caller: str, path: str, request_id: str) -> OperationId | None:
        """An operation of this request id that has delivered a part, whatever its body."""
        for key, exchange in self._live.items():
            if exchange.committed and (key.caller, key.path, key.request_id) == (caller, path, request_id):
                return exchange.identity.operation_id
        for key, operation_id in reversed(self._interrupted.items()):
            if (key.caller, key.path, key.request_id) == (caller, path, request_id):
                return operation_id
        return None

    def find_upstream_retry(self, arrival: Arrival, key: RequestKey) -> OperationId | None:
        """The operation that another gateway's retry repeats after our first delta: it must not run."""
        if not arrival.upstream_retry:
            return None
        exchange = self._live.get(key)
        if exchange is not None and exchange.committed:
            return exchange.identity.operation_id
        return self._interrupted.get(key)

    def find_ledger(self, arrival: Arrival, key: RequestKey) -> OperationId | None:
        """Whose tool ledger another gateway's retry shares, when it runs: that of what it repeats.

        Else what tools have done for that one would be done again.
        """
        if not arrival.upstream_retry:
            return None
        exchange = self._live.get(key)
        return self._ledgers.get(key) if exchange is None else _find_ledger(exchange)


def _find_ledger(exchange: Exchange) -> OperationId:
    identity = exchange.identity
    return identity.operation_id if identity.ledger_id is None else identity.ledger_id


def _remember(among: OrderedDict[RequestKey, OperationId], key: RequestKey, named: OperationId) -> None:
    among[key] = named
    among.move_to_end(key)
    if len(among) > REMEMBERED:
        among.popitem(last=False)
