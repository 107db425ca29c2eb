"""Looks at the event loop's own lateness, all the time that the sidecar runs."""

import asyncio
from collections.abc import Callable

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.loop_lag import LOOK_S, LoopLag
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.ports import Clock

TOO_MUCH = "The gateway itself has more to do than it keeps up with; try again later."


class LoopWatch:
    """Measures, and says whether new work is refused for it."""

    def __init__(
        self,
        bound_s: float,
        classes: TrafficClasses,
        clock: Clock,
        on_look: Callable[[float], None] = lambda late_s: None,
        on_shed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_look` hears each lateness in seconds, `on_shed` of each request that is refused."""
        self.lag = LoopLag(bound_s)
        self._clock = clock
        self._on_look = on_look
        self._on_shed = on_shed
        priorities = {one.priority for one in classes}
        self._classes = classes
        self._first = max(priorities) if len(priorities) > 1 else None
        self._due = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._due = self._clock.now() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """One look, at the time that `run` has slept for."""
        late_s = max(0.0, self._clock.now() - self._due)
        self._on_look(late_s)
        self.lag.note(late_s)

    @property
    def sheds_jobs(self) -> bool:
        """Whether a job that waits goes on waiting."""
        return self.lag.shedding

    def find_refusal(self, request_id: str, request_class: str | None) -> ClientError | None:
        """Why a new request of this class is not let in; None when it is."""
        if not self.lag.shedding:
            return None
        first = self._first is not None and self._classes.find(request_class).priority == self._first
        if not self.lag.sheds(first=first):
            return None
        self._on_shed()
        return ClientError("queue_full", request_id, message=TOO_MUCH)
