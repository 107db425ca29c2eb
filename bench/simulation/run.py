"""One simulation: a fleet, its clients, one gateway, and what goes wrong meanwhile."""

import random as global_random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from random import Random
from typing import Any

from bench.simulation.clients import Clients
from bench.simulation.engine import Engine, EngineModel, Job
from bench.simulation.events import Events
from bench.simulation.plain import PlainGateway, PlainPolicy
from bench.simulation.ruled import RuledGateway, RuledPolicy
from bench.simulation.tally import Tally, read_quantile
from bench.simulation.workload import ANSWER_TOKENS, CALLERS, KINDS, PROMPT_TOKENS, Bursts, Kind, draw

Policy = PlainPolicy | RuledPolicy
GREEDY = "greedy"
STEP_S = 5
"""The width of a bin in what is kept of a run's course."""


@dataclass(frozen=True)
class Lost:
    """A share of the replicas ends at `at`, and others take their places at `back`."""

    share: float
    at: float
    back: float


@dataclass(frozen=True)
class Slow:
    """A share of the replicas takes `factor` times as long for each step, from `at` on."""

    share: float
    factor: float
    at: float


@dataclass(frozen=True)
class Blind:
    """No page comes in time between the two moments."""

    at: float
    until: float


@dataclass(frozen=True)
class Greedy:
    """One caller of a class asks for `load` of the capacity on top of all others, between the two moments."""

    load: float
    kind: str
    at: float
    until: float


Trouble = Lost | Slow | Blind | Greedy


@dataclass(frozen=True)
class Setup:
    """Everything that a run depends on."""

    policy: Policy
    load: float
    """Offered intents, as a share of what the replicas could answer at most."""
    replicas: int = 1000
    seed: int = 1
    until: float = 160.0
    window: tuple[float, float] = (80.0, 160.0)
    troubles: tuple[Trouble, ...] = ()
    engine: EngineModel = field(default_factory=EngineModel)
    bursts: Bursts = field(default_factory=Bursts)
    kinds: tuple[Kind, ...] = KINDS


@cache
def measure_capacity(model: EngineModel) -> float:
    """Requests per second of one engine that always has more to do; what load 1 is for one replica."""
    events, random = Events(), Random(0)
    engine = Engine(events, model)

    def submit() -> None:
        prompt, answer = draw(PROMPT_TOKENS, random), draw(ANSWER_TOKENS, random)
        engine.submit(Job(prompt, answer, _nothing, submit, _nothing))

    for _ in range(4 * model.sequences):
        submit()
    events.run(100.0)
    before = engine.finished
    events.run(20_100.0)
    return (engine.finished - before) / 20_000.0


class Simulation:
    """One run; `run` lets time pass, `report` says what came of it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.events = Events()
        self.random = Random(setup.seed)
        self.tally = Tally(self.events, setup.window)
        self.engines = [Engine(self.events, setup.engine) for _ in range(setup.replicas)]
        self.demand = Random(setup.seed + 1_000_000)
        """What is wanted, and when: the same in every run of a seed, whatever the gateway does."""
        self.clients = Clients(self.events, Random(setup.seed + 2_000_000), self.tally)
        self.gateway: PlainGateway | RuledGateway
        policy = setup.policy
        with self.events.as_loop():
            if isinstance(policy, RuledPolicy):
                self.gateway = RuledGateway(self.events, self.engines, policy, self.random, self.tally)
            else:
                self.gateway = PlainGateway(self.events, self.engines, policy, self.random, self.tally)
        self.clients.gateway = self.gateway
        self.rate = setup.load * setup.replicas * measure_capacity(setup.engine)
        self._multiplier = setup.bursts.calm
        self._stopped = False
        self._work: list[tuple[int, int]] = []
        self._prepare()

    def _prepare(self) -> None:
        at = self.events.at
        # The product looks at its replicas first, as `run` does before it says that it takes requests.
        at(5.0, self._arrive)
        at(5.0, self._switch_burst, False)
        at(1.0, self._check)
        for moment in self.setup.window:
            at(moment, self._note_work)
        for trouble in self.setup.troubles:
            self._prepare_trouble(trouble)

    def _prepare_trouble(self, trouble: Trouble) -> None:
        at = self.events.at
        match trouble:
            case Lost(share, start, back):
                some = self._choose(share)
                at(start, self._for_all, some, Engine.kill)
                at(back, self._for_all, some, Engine.start)
            case Slow(share, factor, start):
                some = self._choose(share)
                at(start, self._for_all, some, lambda engine: setattr(engine, "slowness", factor))
            case Blind(start, until):
                if isinstance(self.gateway, RuledGateway):  # nobody else reads pages
                    at(start, setattr, self.gateway.watch, "blind", True)
                    at(until, setattr, self.gateway.watch, "blind", False)
            case Greedy(load, kind, start, until):
                known = next(one for one in self.setup.kinds if one.name == kind)
                rate = load * self.setup.replicas * measure_capacity(self.setup.engine)
                at(start, self._arrive_greedy, known, rate, until)

    def run(self) -> "Simulation":
        """Let all of it happen."""
        # The product draws Retry-After from the module's own source.
        global_random.seed(self.setup.seed)
        with self.events.as_loop():
            self.events.run(self.setup.until)
        return self

    def stop(self) -> None:
        """Nobody wants anything new; what is wanted goes on."""
        self._stopped = True

    def events_until(self, time: float) -> None:
        """Let it go on beyond its end."""
        with self.events.as_loop():
            self.events.run(time)

    # --- what happens -------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self._stopped:
            return
        demand = self.demand
        self.events.after(demand.expovariate(self.rate * self._multiplier), self._arrive)
        kind = demand.choices(self.setup.kinds, [one.share for one in self.setup.kinds])[0]
        self._want(kind, f"caller-{demand.randrange(CALLERS)}")

    def _arrive_greedy(self, kind: Kind, rate: float, until: float) -> None:
        if self.events.time < until:
            wait_s = self.demand.expovariate(rate)
            self.events.after(wait_s, self._arrive_greedy, kind, rate, until)
            self._want(kind, GREEDY)

    def _want(self, kind: Kind, caller: str) -> None:
        prompt, answer = draw(PROMPT_TOKENS, self.demand), draw(ANSWER_TOKENS, self.demand)
        self.clients.want(kind, caller, prompt, answer)

    def _switch_burst(self, high: bool) -> None:
        bursts = self.setup.bursts
        self._multiplier = bursts.high if high else bursts.calm
        mean_s = bursts.high_s if high else bursts.calm_s
        self.events.after(self.demand.expovariate(1 / mean_s), self._switch_burst, not high)

    def _check(self) -> None:
        self.gateway.check_invariants()
        self.events.after(1.0, self._check)

    def _note_work(self) -> None:
        prompt = sum(engine.prompt_tokens for engine in self.engines)
        self._work.append((prompt, sum(engine.answer_tokens for engine in self.engines)))

    def _choose(self, share: float) -> list[Engine]:
        return self.random.sample(self.engines, round(share * len(self.engines)))

    def _for_all(self, engines: list[Engine], change: Callable[[Engine], object]) -> None:
        for engine in engines:
            change(engine)

    # --- what came of it ----------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The figures of the window, and the course of the run."""
        tally, setup = self.tally, self.setup
        begin, end = setup.window
        seconds, totals = end - begin, tally.totals
        capacity = setup.replicas * measure_capacity(setup.engine)
        wanted = max(1, totals["wanted"])
        (prompt0, answer0), (prompt1, answer1) = self._work
        done, good = (
            self._weigh(prompt1 - prompt0, answer1 - answer0),
            self._weigh(tally.good_prompt, tally.good_answer),
        )
        course = ("wanted", "good", "sent", "attempts", "refused")
        return {
            "offered": round(totals["wanted"] / seconds / capacity, 4),
            "goodput": round(totals["good"] / seconds / capacity, 4),
            "good_by_kind": {
                kind.name: round(totals[f"good_{kind.name}"] / max(1, totals[f"wanted_{kind.name}"]), 4)
                for kind in setup.kinds
            },
            "sent_per_intent": round(totals["sent"] / wanted, 3),
            "attempts_per_intent": round(totals["attempts"] / wanted, 3),
            "wasted_work": round(max(0.0, 1 - good / done), 4) if done else None,
            "first_s": {"p50": read_quantile(tally.first_s, 0.5), "p99": read_quantile(tally.first_s, 0.99)},
            "refusal_s": {
                "p50": read_quantile(tally.refusal_s, 0.5),
                "p99": read_quantile(tally.refusal_s, 0.99),
            },
            "refused": {
                what.removeprefix("refused_"): count
                for what, count in sorted(totals.items())
                if what.startswith("refused_")
            },
            "greedy": self._report_greedy(),
            "course": {
                what: [round(one / capacity, 4) for one in tally.read_series(what, setup.until, STEP_S)]
                for what in course
            },
        }

    def _report_greedy(self) -> dict[str, float] | None:
        wanted, good = self.tally.callers["wanted"], self.tally.callers["good"]
        if not wanted[GREEDY]:
            return None
        others = sum(good.values()) - good[GREEDY]
        return {
            "greedy_answered": round(good[GREEDY] / wanted[GREEDY], 4),
            "others_answered": round(others / max(1, sum(wanted.values()) - wanted[GREEDY]), 4),
            "greedy_share_of_goodput": round(good[GREEDY] / max(1, sum(good.values())), 4),
        }

    def _weigh(self, prompt: int, answer: int) -> float:
        """Tokens as seconds of an engine with a full batch."""
        model = self.setup.engine
        per_answer = model.compute_step_s(model.sequences, 0) / model.sequences
        return prompt * model.token_s + answer * per_answer


def describe(setup: Setup) -> dict[str, Any]:
    """A setup as it is kept beside its results."""
    known = asdict(setup)
    return {"load": setup.load, "replicas": setup.replicas, "seed": setup.seed, "until": known["until"]}


def _nothing() -> None:
    """Nobody asks."""
