"""Envoy without the product: least request of two, retries at the gateway, and what limits them.

Without limits, or with what Envoy gives to whoever configures it: a retry budget, a limit of requests in
flight (`max_requests`), and active health checks.
"""

from dataclasses import dataclass, field
from random import Random

from bench.simulation.engine import Engine, Job
from bench.simulation.events import Events
from bench.simulation.request import Request
from bench.simulation.tally import Tally


@dataclass(frozen=True)
class PlainPolicy:
    """How it is configured."""

    retries: int = 2
    budget: tuple[float, int] | None = None
    """`budget_percent` as a share and `min_retry_concurrency`; None: no limit of retries."""
    max_requests: int | None = None
    health_check_s: float | None = None
    """The interval of active health checks; None: nobody looks."""
    unhealthy_after: int = 2
    back_off_s: tuple[float, float] = (0.025, 0.25)
    """Envoy's defaults: base interval and the longest, drawn below it."""


@dataclass(slots=True, eq=False)
class _Flight:
    request: Request
    tries: int = 0
    job: Job | None = None
    replica: int = -1
    retrying: bool = False
    begun: bool = False
    """A part of the answer was passed on."""


@dataclass(slots=True)
class _Host:
    engine: Engine
    active: int = 0
    healthy: bool = True
    misses: int = 0


@dataclass
class PlainGateway:
    """A model of Envoy, as far as a request's way goes."""

    events: Events
    engines: list[Engine]
    policy: PlainPolicy
    random: Random
    tally: Tally
    retrying: int = 0
    _flights: dict[int, _Flight] = field(default_factory=dict)
    _hosts: list[_Host] = field(default_factory=list)
    _healthy: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hosts = [_Host(engine) for engine in self.engines]
        self._healthy = list(range(len(self._hosts)))
        if self.policy.health_check_s is not None:
            for number in range(len(self._hosts)):
                self.events.after(self.random.uniform(0, self.policy.health_check_s), self._check, number)

    def receive(self, request: Request) -> None:
        """A request from a client."""
        limit = self.policy.max_requests
        if limit is not None and len(self._flights) >= limit:
            self._refuse(request, "overflow")
            return
        flight = self._flights[request.number] = _Flight(request)
        self._try(flight)

    def leave(self, request: Request) -> None:
        """Its client has gone."""
        flight = self._flights.get(request.number)
        if flight is None:
            return
        job = flight.job
        self._land(flight)
        if job is not None:
            self.engines[flight.replica].cancel(job)

    def check_invariants(self) -> None:
        """What must hold at every moment."""
        assert sum(host.active for host in self._hosts) == sum(
            flight.job is not None for flight in self._flights.values()
        )
        assert self.retrying == sum(flight.retrying for flight in self._flights.values())

    # --- inside -------------------------------------------------------------------------------

    def _try(self, flight: _Flight) -> None:
        request = flight.request
        if request.over:
            return
        flight.tries += 1
        if not self._healthy:
            self._give_up(flight, "no_healthy_upstream")
            return
        one, other = self.random.choice(self._healthy), self.random.choice(self._healthy)
        number = one if self._hosts[one].active <= self._hosts[other].active else other
        host = self._hosts[number]

        def first() -> None:
            self.tally.note_first(request)
            flight.begun = request.stream
            request.first_word()

        def end() -> None:
            self._land(flight)
            request.answered()

        def lost() -> None:
            self._lose(flight)

        job = Job(request.prompt, request.answer, first, end, lost)
        flight.job, flight.replica = job, number
        host.active += 1
        self.tally.count("attempts")
        if not host.engine.submit(job):
            self._lose(flight)

    def _lose(self, flight: _Flight) -> None:
        self._hosts[flight.replica].active -= 1
        flight.job = None
        if flight.begun:
            self._land(flight)
            flight.request.broken()
        elif flight.tries > self.policy.retries or not self._may_retry(flight):
            self._give_up(flight, "upstream_failure")
        else:
            if not flight.retrying:
                flight.retrying = True
                self.retrying += 1
            base, longest = self.policy.back_off_s
            delay_s = self.random.uniform(0, min(longest, base * (2**flight.tries - 1)))
            self.events.after(delay_s, self._try, flight)

    def _may_retry(self, flight: _Flight) -> bool:
        if self.policy.budget is None or flight.retrying:
            return True
        share, least = self.policy.budget
        return self.retrying < max(least, share * len(self._flights))

    def _give_up(self, flight: _Flight, code: str) -> None:
        self._land(flight)
        self._refuse(flight.request, code)

    def _land(self, flight: _Flight) -> None:
        """It is in flight no more."""
        if self._flights.pop(flight.request.number, None) is None:
            return
        if flight.job is not None:
            self._hosts[flight.replica].active -= 1
            flight.job = None
        if flight.retrying:
            self.retrying -= 1

    def _refuse(self, request: Request, code: str) -> None:
        """Envoy's own 503; it says nothing of when to come back."""
        self.tally.note_refused(request, code)
        request.refused(503, None)

    def _check(self, number: int) -> None:
        host, policy = self._hosts[number], self.policy
        assert policy.health_check_s is not None
        host.misses = 0 if host.engine.alive else host.misses + 1
        healthy = host.misses < policy.unhealthy_after if host.healthy else host.engine.alive
        if healthy != host.healthy:
            host.healthy = healthy
            self._healthy = [one for one, known in enumerate(self._hosts) if known.healthy]
        self.events.after(policy.health_check_s, self._check, number)
