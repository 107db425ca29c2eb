"""What an exchange is opened with."""

from collections.abc import Callable
from dataclasses import dataclass

from envoy_ext.domain.ids import AttemptId, ExchangeId, OperationId
from envoy_ext.services.admission import Admitted, Arrival
from envoy_ext.services.repeats import RequestKey


@dataclass(frozen=True, slots=True)
class Minting:
    """Where ids come from; randomness stays outside."""

    exchange_id: Callable[[], ExchangeId]
    attempt_id: Callable[[], AttemptId]


@dataclass(frozen=True, slots=True)
class RunOf:
    """What the exchange of a job's run is to know of its job."""

    job_id: OperationId
    attempts_left: int
    """Of those that its runs may have together; 1 at least."""
    on_over: Callable[[], None]
    """Called once when all is told of the exchange."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A request that becomes an exchange, and the names it has got on its way."""

    arrival: Arrival
    admitted: Admitted
    key: RequestKey
    operation_id: OperationId
    key_hash: str | None
    """Of its idempotency key; None without one."""
    after: OperationId | None = None
    """The operation before it under that key, which may run again."""
    ledger_id: OperationId | None = None
    """Where that one's tool calls stand."""
    run: RunOf | None = None
    """The job that it is a run of."""
