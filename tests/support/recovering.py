"""Recovery as a gateway runs it, on a clock that a test moves."""

from dataclasses import dataclass, field

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.operation import Operation
from envoy_ext.ports import Journal
from envoy_ext.services.recovery import Recovery
from envoy_ext.services.seats import SeatKeeper
from tests.support.clock import ManualClock

POLICY = LeasePolicy(ttl_s=6.0, renew_s=2.0, margin_s=1.0)


@dataclass
class Gateway:
    """One gateway's seat and recovery at a journal that others may share."""

    journal: Journal = field(default_factory=MemoryJournal)
    clock: ManualClock = field(default_factory=ManualClock)
    ended: list[Operation] = field(default_factory=list)
    lost_seats: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keeper = SeatKeeper(self.journal, self.clock, POLICY, "gw")
        self.keeper.on_lost(self.lost_seats.append)
        self.recovery = Recovery(self.journal, self.clock, POLICY, self.keeper, self.ended.append)

    async def start(self) -> "Gateway":
        await self.keeper.take()
        return self


async def recover(journal: Journal) -> list[Operation]:
    """The operations that a gateway ends which finds this journal at its start, given the time it needs."""
    gateway = await Gateway(journal).start()
    await gateway.recovery.look()
    gateway.clock.advance(POLICY.ttl_s + POLICY.margin_s)
    await gateway.recovery.look()
    return gateway.ended
