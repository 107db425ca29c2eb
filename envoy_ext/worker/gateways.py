"""The gateways as one: which of them answers for a lease, and what their silence means."""

import asyncio
from collections.abc import Sequence
from typing import Final

from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.worker_lease import Renewal, WorkerLease
from envoy_ext.worker.channel import Answer, GatewayLink

ACKNOWLEDGE_TRIES: Final = 3
"""An acknowledgement that nobody hears costs the client a wait for the lease's end, and nothing else."""
ACKNOWLEDGE_PAUSE_S: Final = 0.1
"""Before the second try; twice as long before each further one."""
MAX_KNOWN: Final = 4096
"""Attempts whose gateway is remembered. One that is forgotten costs a question to all of them."""


class LeaseGateways:
    """`LeaseChannel` over any number of gateways. Belongs to one event loop.

    All are asked at once until one knows the lease, and from then on that one first: a gateway that is
    down must not use up the time of a lease that another one granted.
    """

    def __init__(self, links: Sequence[GatewayLink]) -> None:
        self._links = tuple(links)
        self._knowing: dict[AttemptId, GatewayLink] = {}

    async def renew(self, renewal: Renewal) -> Answer:
        """Ask for more time. Only a gateway that knows the lease may refuse it."""
        first = self._knowing.get(renewal.attempt_id)
        answer = Answer.UNKNOWN if first is None else await first.renew(renewal)
        if answer in (Answer.GRANTED, Answer.REFUSED):
            return answer
        others = await self._ask([link for link in self._links if link is not first], renewal)
        if others is not Answer.UNKNOWN:
            return others
        # Known to none of them, and all were asked: it is an earlier life's, or forged.
        return Answer.REFUSED if answer is Answer.UNKNOWN else Answer.NONE

    async def acknowledge(self, lease: WorkerLease) -> bool:
        """Say that generation has stopped, to whichever gateway knows of it."""
        first = self._knowing.pop(lease.attempt_id, None)
        links = self._links if first is None else (first, *(one for one in self._links if one is not first))
        for attempt in range(ACKNOWLEDGE_TRIES):
            if attempt:
                await asyncio.sleep(ACKNOWLEDGE_PAUSE_S * 2 ** (attempt - 1))
            unheard = False
            for link in links:
                heard = await link.tell_stopped(lease)
                if heard:
                    return True
                unheard = unheard or heard is None
            if not unheard:
                return False  # none of them waits for it
        return False

    async def close(self) -> None:
        """Let go of connections."""
        for link in self._links:
            await link.close()

    async def _ask(self, links: Sequence[GatewayLink], renewal: Renewal) -> Answer:
        """The word of the first that knows it; `UNKNOWN` when none does, `NONE` when one may."""

        async def ask(link: GatewayLink) -> tuple[GatewayLink, Answer]:
            return link, await link.renew(renewal)

        asking = [asyncio.ensure_future(ask(link)) for link in links]
        silent = False
        try:
            for coming in asyncio.as_completed(asking):
                link, answer = await coming
                if answer in (Answer.GRANTED, Answer.REFUSED):
                    self._remember(renewal.attempt_id, link)
                    return answer
                silent = silent or answer is Answer.NONE
        finally:
            for task in asking:
                task.cancel()
        return Answer.NONE if silent else Answer.UNKNOWN

    def _remember(self, attempt_id: AttemptId, link: GatewayLink) -> None:
        self._knowing[attempt_id] = link
        if len(self._knowing) > MAX_KNOWN:
            self._knowing.pop(next(iter(self._knowing)))
