"""What is simulated: every run of `make simulation`, and the policies that are compared."""

from dataclasses import dataclass

from bench.simulation.engine import EngineModel
from bench.simulation.plain import PlainPolicy
from bench.simulation.ruled import RuledPolicy
from bench.simulation.run import Blind, Greedy, Lost, Policy, Setup, Slow, Trouble

LOADS = (0.1, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)
MANY, FEW = 1000, 40
SEEDS = (1, 2, 3)
FROM, BACK = 80.0, 140.0
"""When trouble begins, and when what is lost is back."""

POLICIES = ("bare", "limited", "rules")
TITLES = {
    "bare": "Envoy, least request and two retries",
    "limited": "Envoy with retry budget, request limit, health checks",
    "rules": "the product's rules",
    "rules+deadlines": "the product's rules, clients tell their deadlines",
}


def build_policy(name: str, replicas: int, model: EngineModel) -> Policy:
    """A policy for a fleet of this size."""
    slots = replicas * model.sequences
    match name:
        case "bare":
            return PlainPolicy()
        case "limited":
            return PlainPolicy(budget=(0.20, 3), max_requests=slots * 3 // 2, health_check_s=5.0)
        case "rules":
            return RuledPolicy(concurrency=model.sequences)
        case "rules+deadlines":
            return RuledPolicy(concurrency=model.sequences, deadlines=True)
    raise ValueError(f"no policy is called {name}")


@dataclass(frozen=True)
class Case:
    """One run, by the names under which its results are kept."""

    scenario: str
    policy: str
    load: float
    replicas: int
    seed: int

    @property
    def name(self) -> str:
        """Unique among all cases."""
        return f"{self.scenario}/{self.policy}/{self.load:g}/{self.replicas}/{self.seed}"

    def build(self) -> Setup:
        """All that the run depends on."""
        model = EngineModel(notices=not self.scenario.startswith("deaf"))
        policy = build_policy(self.policy, self.replicas, model)
        if self.scenario == "sweep":
            window, until = (60.0, 110.0), 110.0
        elif self.scenario == "deaf-sweep":
            window, until = (110.0, 160.0), 160.0
        else:
            until = 300.0 if self.scenario.endswith("50") else 240.0
            window = (FROM, until)
        return Setup(
            policy,
            self.load,
            replicas=self.replicas,
            seed=self.seed,
            until=until,
            window=window,
            troubles=TROUBLES.get(self.scenario, ()),
            engine=model,
        )


TROUBLES: dict[str, tuple[Trouble, ...]] = {
    "loss10": (Lost(0.1, FROM, BACK),),
    "loss30": (Lost(0.3, FROM, BACK),),
    "loss50": (Lost(0.5, FROM, BACK),),
    "deaf-loss50": (Lost(0.5, FROM, BACK),),
    "outage": (Lost(1.0, FROM, FROM + 30.0),),
    "slow": (Slow(0.1, 4.0, FROM),),
    "greedy": (Greedy(1.0, "chat", FROM, BACK),),
    "blind": (Blind(FROM, BACK),),
}
TROUBLE_LOADS = {"loss50": 0.85, "deaf-loss50": 0.85}
"""Else 0.7."""


def read_load(scenario: str) -> float:
    """At which load something goes wrong."""
    return TROUBLE_LOADS.get(scenario, 0.7)


def list_cases() -> list[Case]:
    """Everything, the most telling first."""
    cases = [Case("sweep", policy, load, MANY, 1) for load in LOADS for policy in POLICIES]
    for seed in SEEDS:
        for policy in POLICIES:
            cases += [Case(scenario, policy, read_load(scenario), FEW, seed) for scenario in TROUBLES]
            cases += [Case("sweep", policy, load, FEW, seed) for load in LOADS]
            cases += [Case("deaf-sweep", policy, load, FEW, seed) for load in LOADS if load >= 0.8]
        cases += [Case("sweep", "rules+deadlines", load, FEW, seed) for load in LOADS if load > 1]
    return cases
