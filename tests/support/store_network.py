"""Gateways and their calls to one store, each on its way for as long as somebody likes."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from envoy_ext.domain.errors import NotOwner, SeatLost
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.lease import Lease, LeasePolicy
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.ownership import Seat, SeatWatch
from envoy_ext.domain.worker_lease import WorkerLease
from tests.support.journals import run_now

POLICY = LeasePolicy(ttl_s=6.0, renew_s=2.0, margin_s=1.0)
SPREAD = (POLICY.ttl_s + POLICY.margin_s) / POLICY.ttl_s
"""How much faster one clock may run than another."""


@dataclass
class Gateway:
    """One gateway: its clock, its seat, what it watches, and the one operation it runs, if any."""

    name: str
    rate: float
    offset: float
    seat: Seat | None = None
    watch: SeatWatch = field(default_factory=lambda: SeatWatch(POLICY))
    fences: dict[OperationId, tuple[float, Operation]] = field(default_factory=dict)

    def now(self, real: float) -> float:
        return self.offset + real * self.rate

    def real(self, now: float) -> float:
        return (now - self.offset) / self.rate


@dataclass
class Run:
    """An operation as the gateway that began it runs it: one attempt, with a worker or without."""

    operation_id: OperationId
    gateway: Gateway
    seat: SeatId
    lease: Lease | None = None
    worker: WorkerLease | None = None
    worker_clock: float = 1.0
    committed: bool = False

    def may_publish(self, real: float) -> bool:
        """Whether a chunk of its attempt can reach the client, or be sent by its worker, from here on."""
        by_worker = self.worker is not None and self.worker.may_publish(real * self.worker_clock)
        return by_worker or self.committed


@dataclass(eq=False)
class Call:
    """A call on its way to the store, and what its caller does with the answer, should it come."""

    gateway: Gateway
    work: Callable[[], Coroutine[object, object, object]]
    then: Callable[[object], None]


class StoreNetwork:
    """Calls that were sent. Delivered or not, once or twice; their answers heard or not."""

    calls: list[Call]

    def check(self) -> None:
        """Whatever holds after each delivery."""

    def send(
        self,
        gateway: Gateway,
        work: Callable[[], Coroutine[object, object, object]],
        then: Callable[[object], None],
    ) -> None:
        self.calls.append(Call(gateway, work, then))

    def deliver_calls_of(self, gateway: Gateway) -> None:
        while self.deliver_next_call_of(gateway):
            pass

    def deliver_next_call_of(self, gateway: Gateway) -> bool:
        call = next((one for one in self.calls if one.gateway is gateway), None)
        if call is not None:
            self.calls.remove(call)
            self.deliver(call, answered=True)
        return call is not None

    def deliver(self, call: Call, *, answered: bool) -> None:
        try:
            answer = run_now(call.work())
        except (NotOwner, SeatLost) as refusal:
            answer = refusal
        if answered:
            call.then(answer)
        self.check()
