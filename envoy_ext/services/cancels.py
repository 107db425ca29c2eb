"""Asks the engine of a dropped attempt to end it, where the engine has a call for just that.

Its connection is closed by then, which is the cancel that every engine is told; some look for that every few
seconds only. The call is sent once, and what becomes of it is counted and no more: neither a good answer nor
a bad one says that the engine has stopped.
"""

from collections.abc import Callable, Mapping
from typing import Final

from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.sample import ScrapeTarget
from envoy_ext.domain.slots import CancelBegan
from envoy_ext.ports import AbortSource
from envoy_ext.services.background import Background
from envoy_ext.services.fleet import Fleet

ASKED: Final = "asked"
"""The engine took the call."""


class Cancels:
    """Runs on the event loop of the exchanges."""

    def __init__(
        self,
        source: AbortSource,
        fleet: Fleet,
        engines: Mapping[PoolName, str],
        background: Background,
        on_result: Callable[[PoolName, str], None],
    ) -> None:
        """`engines` are those of the pools whose engine has such a call."""
        self._source = source
        self._fleet = fleet
        self._engines = engines
        self._background = background
        self._on_result = on_result

    def note_began(self, began: CancelBegan) -> None:
        """An attempt was dropped."""
        engine = self._engines.get(began.pool)
        url = None if began.replica is None else self._find_url(began.pool, began.replica)
        if engine is not None and url is not None:
            self._background.run(self._ask(began, ScrapeTarget(url, engine, pool=began.pool)))

    def _find_url(self, pool: PoolName, replica: ReplicaId) -> str | None:
        view = self._fleet.view.find(pool)
        found = None if view is None else view.find(replica)
        return None if found is None else found.profile.url

    async def _ask(self, began: CancelBegan, target: ScrapeTarget) -> None:
        failure = await self._source.abort(target, began.attempt_id)
        self._on_result(began.pool, ASKED if failure is None else failure.reason)
