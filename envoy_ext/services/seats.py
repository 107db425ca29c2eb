"""Keeps this gateway's seat at the store that it shares with others, and takes another when it is lost.

A store that no other process can use gives its seat for good: nobody watches it, so it needs no beats.
"""

import asyncio
from collections.abc import Callable

from envoy_ext.domain.errors import JournalUnavailable, SeatLost
from envoy_ext.domain.ids import SeatId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.ownership import Seat
from envoy_ext.ports import Clock, Journal


class SeatKeeper:
    """Owned by the composition root; used from one event loop."""

    def __init__(self, journal: Journal, clock: Clock, policy: LeasePolicy, gateway: str) -> None:
        self._journal = journal
        self._clock = clock
        self._policy = policy
        self._gateway = gateway
        self._seat: Seat | None = None
        self._listeners: list[Callable[[SeatId], None]] = []

    def on_lost(self, listener: Callable[[SeatId], None]) -> None:
        """Call it with each seat that this gateway has lost."""
        self._listeners.append(listener)

    async def take(self) -> None:
        """The first seat, and each after one that was lost; `JournalUnavailable` when none can be had."""
        asked_at = self._clock.now()
        seat = await self._journal.take_seat(self._gateway)
        self._seat = Seat(seat, self._policy, asked_at)

    @property
    def seat(self) -> SeatId:
        """The one it has, or had last."""
        if self._seat is None:
            raise RuntimeError("no seat was taken")
        return self._seat.id

    @property
    def may_act(self) -> bool:
        """Whether this gateway may take work. Read before each thing it allows, for time alone ends it."""
        if self._seat is None:
            return False
        return self._journal.exclusive or self._seat.may_act(self._clock.now())

    def holds(self, seat: SeatId) -> bool:
        """Whether what was begun in this seat may still be given time."""
        return self.may_act and self._seat is not None and self._seat.id == seat

    def has(self, seat: SeatId) -> bool:
        """Whether nobody has said that this seat is lost, however long ago its last beat was kept."""
        return self._seat is not None and self._seat.id == seat and not self._seat.lost

    async def run(self) -> None:
        """Beat, until cancelled; return at once where nobody watches."""
        while not self._journal.exclusive:
            await self.beat()
            due = None if self._seat is None else self._seat.next_deadline()
            wait_s = self._policy.renew_s if due is None else due - self._clock.now()
            await asyncio.sleep(max(0.0, wait_s))

    async def beat(self) -> None:
        """One beat if it is due; another seat when the store says that this one was removed."""
        seat = self._seat
        try:
            if seat is None or seat.lost:
                await self.take()
                return
            number = seat.build_beat(self._clock.now())
            if number is not None:
                await self._journal.beat(seat.id, number)
                seat.receive_kept(number)
        except JournalUnavailable:
            return  # the next beat tries again; meanwhile time decides
        except SeatLost:
            await self._replace(seat)

    async def _replace(self, lost: Seat | None) -> None:
        if lost is None:
            return
        lost.receive_lost()
        for listener in self._listeners:
            listener(lost.id)
        await self.beat()

    async def resign(self) -> None:
        """Leave the seat, so that nobody needs to watch it any more. To be called when all work has ended."""
        seat = self._seat
        if seat is None or seat.lost:
            return
        seat.receive_lost()
        try:
            await self._journal.remove_seat(seat.id, seat.number)
        except JournalUnavailable:
            return  # it is found gone by its silence
