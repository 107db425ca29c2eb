"""What a look at a replica adds to Envoy's word on a lost attempt.

Envoy tells a killed process and a cut network in the same words, so a connection is tried at once: its
host refuses (the process is dead), somebody accepts (the connection was closed by a replica that is
there, unless it was silent for so long that a cut network may have closed it, and has healed), or nobody
answers (nothing is known, and only the end of the lease fences the attempt). While a replay waits for
that end it is looked at again: a process may die behind a cut network. Besides, the pages that the fleet
reads may show another process at its place.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from envoy_ext.domain.events import (
    AttemptFenced,
    AttemptLogged,
    AttemptUnanswered,
    AttemptUnconfirmed,
    LogCause,
)
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.notes import FenceAwaited
from envoy_ext.domain.places import Places, RanAt
from envoy_ext.domain.silent_loss import may_be_a_cut
from envoy_ext.ports import Clock, Reach, ReachProbe
from envoy_ext.services.live_exchange import LiveExchange

LOOK_EVERY_S: Final = 0.5


class Fences:
    """Runs on the event loop of the exchanges."""

    def __init__(
        self,
        places: Places,
        probe: ReachProbe,
        clock: Clock,
        on_dead: Callable[[PoolName, str], None],
    ) -> None:
        """`on_dead` is told the pool and the address of a process that is gone, before its attempts are over:
        what they held there is no room for others."""
        self._places = places
        self._probe = probe
        self._clock = clock
        self._on_dead = on_dead

    async def tell_loss(
        self,
        live: LiveExchange,
        lost: AttemptLogged | AttemptUnanswered,
        is_open: Callable[[], bool],
    ) -> None:
        """Tell an exchange of a lost connection, with what is at the other end now."""
        silent_s = live.exchange.read_silence(lost.attempt_id, self._clock.now())
        reach = await self._probe.look(lost.address)
        if not is_open():
            return
        healed = reach is Reach.ACCEPTED and may_be_a_cut(silent_s)
        if not self._fence_dead(live, lost, reach) and (reach is not Reach.ACCEPTED or healed):
            lost = replace(lost, cause=LogCause.UPSTREAM_TIMEOUT)
        live.receive(lost)

    async def tell_unconfirmed(
        self, live: LiveExchange, lost: AttemptUnconfirmed, is_open: Callable[[], bool]
    ) -> None:
        """Tell an exchange of a replica whose machine confirms nothing: unless somebody is there by now."""
        reach = await self._probe.look(lost.address)
        if reach is Reach.ACCEPTED or not is_open():
            return  # the kernel sends again what was lost, and the replica has it
        if not self._fence_dead(live, lost, reach):
            lost = replace(lost, cause=LogCause.UPSTREAM_TIMEOUT)
        live.receive(lost)

    def _fence_dead(
        self, live: LiveExchange, lost: AttemptLogged | AttemptUnanswered | AttemptUnconfirmed, reach: Reach
    ) -> bool:
        """Whether the process is gone that an attempt went to; if so, it is told."""
        ran = live.exchange.find_place(lost.attempt_id)
        dead = ran is not None and self._is_proof(reach, replace(ran, address=lost.address))
        if dead:
            self._on_dead(live.exchange.identity.pool, lost.address)
            live.receive(AttemptFenced(lost.attempt_id, FenceProof.DEATH))
        return dead

    async def watch(
        self, awaited: FenceAwaited, live: LiveExchange, limit_s: float, is_over: Callable[[], bool]
    ) -> None:
        """Look until there is a proof, nobody waits for one, or the lease has run out by itself."""
        until = self._clock.now() + limit_s
        while not is_over() and self._clock.now() < until:
            ran = live.exchange.find_place(awaited.attempt_id)
            if ran is not None and ran.address and await self._is_dead(ran):
                live.receive(AttemptFenced(awaited.attempt_id, FenceProof.DEATH))
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _is_dead(self, ran: RanAt) -> bool:
        """Whether the process is gone in which an attempt ran."""
        if self._places.has_ended(ran):
            return True
        return self._is_proof(await self._probe.look(ran.address), ran)

    def _is_proof(self, reach: Reach, ran: RanAt) -> bool:
        """Whether a refusal speaks of what stood there when an attempt ran."""
        return reach is Reach.REFUSED and not self._places.is_taken_over(ran)
