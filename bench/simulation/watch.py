"""Looking at simulated engines, as the product's scraper and prober do: pages, refusals, control calls."""

from collections.abc import Mapping, Set
from functools import partial
from random import Random
from typing import Final

from bench.simulation.engine import Engine, Job
from bench.simulation.events import Events
from envoy_ext.domain.fleet_events import ControlCallFailed, ControlCallPassed, Scraped, ScrapeFailed
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.services.fleet import Fleet

CONTROL_CALL_S: Final = 5.0
"""A control call that has no token by then has failed."""


class Watch:
    """Looks at each replica once an interval, and tells the fleet."""

    def __init__(
        self,
        events: Events,
        fleet: Fleet,
        engines: Mapping[ReplicaId, Engine],
        streams: Mapping[ReplicaId, Set[AttemptId]],
        every_s: float,
        random: Random,
    ) -> None:
        """`streams` are the attempts of each replica whose bytes come: a sign of life."""
        self.blind = False
        """No page comes in time, whatever the engines do."""
        self._events = events
        self._fleet = fleet
        self._engines = engines
        self._streams = streams
        self._every_s = every_s
        self._called: set[ReplicaId] = set()
        """Whose control call is under way."""
        for name in engines:
            events.after(random.uniform(0, every_s), self._scrape, name)

    def _scrape(self, name: ReplicaId) -> None:
        engine, now = self._engines[name], self._events.time
        if self.blind:
            self._fleet.receive(name, ScrapeFailed(ScrapeFailure(now, "timeout")))
        elif not engine.alive:
            self._fleet.receive(name, ScrapeFailed(ScrapeFailure(now, "refused")))
        else:
            self._fleet.receive(name, Scraped(_read_page(engine, now), now))
        streams = self._streams[name]
        if streams and engine.alive:
            self._fleet.streams.note_bytes(next(iter(streams)))
        if name not in self._called and self._fleet.is_control_call_due(name):
            self._called.add(name)
            self._call_control(name)
        self._events.after(self._every_s, self._scrape, name)

    def _call_control(self, name: ReplicaId) -> None:
        """Ask for one token, as the prober does."""
        incarnation, engine = self._fleet.incarnation(name), self._engines[name]

        def tell(event: ControlCallPassed | ControlCallFailed) -> None:
            timer.cancel()
            engine.cancel(job)
            self._called.discard(name)
            self._fleet.receive(name, event)

        passed = partial(tell, ControlCallPassed(incarnation))
        job = Job(8, 1, _hear_nothing, passed, partial(tell, ControlCallFailed(incarnation, "lost")))
        timer = self._events.after(CONTROL_CALL_S, tell, ControlCallFailed(incarnation, "timeout"))
        if not engine.submit(job):
            tell(ControlCallFailed(incarnation, "refused"))


def _read_page(engine: Engine, now: float) -> Sample:
    """What vLLM's page tells."""
    return Sample(
        at=now,
        running=engine.running,
        waiting=engine.waiting,
        kv_cache_usage=engine.kv_usage,
        progress=engine.steps,
        allocation_failures=engine.preemptions,
        process_started_at=1_750_000_000.0 + engine.started_at,
        requests_total=engine.finished,
    )


def _hear_nothing() -> None:
    """The first token of a control call is its last."""
