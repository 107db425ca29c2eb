"""Whole simulations, small ones: what they must show whatever is changed in them, and the same again."""

from dataclasses import replace

import pytest

from bench.simulation.engine import EngineModel
from bench.simulation.plain import PlainGateway, PlainPolicy
from bench.simulation.ruled import POOL, RuledGateway, RuledPolicy
from bench.simulation.run import Blind, Greedy, Lost, Setup, Simulation, measure_capacity
from bench.simulation.scenarios import Case, build_policy, list_cases
from bench.simulation.workload import ANSWER_TOKENS, PROMPT_TOKENS, compute_mean

MODEL = EngineModel()
SMALL = Setup(RuledPolicy(queue=16), 1.0, replicas=3, until=70.0, window=(20.0, 70.0))
LIMITED = PlainPolicy(budget=(0.2, 3), max_requests=72, health_check_s=5.0)


def run_to_rest(setup: Setup) -> Simulation:
    """Let a run end, and then everybody who still wants something."""
    simulation = Simulation(setup).run()
    simulation.stop()
    simulation.events_until(setup.until + 1_000.0)
    return simulation


@pytest.mark.parametrize(
    "policy",
    [PlainPolicy(), LIMITED, RuledPolicy(queue=16), RuledPolicy(queue=16, deadlines=True, worker=True)],
)
@pytest.mark.parametrize("notices", [True, False])
def test_every_intent_ends_once_and_nothing_is_left(policy: object, notices: bool) -> None:
    troubles = (Lost(0.67, 30.0, 45.0), Greedy(0.5, "chat", 25.0, 60.0))
    setup = replace(
        SMALL,
        policy=policy,
        troubles=troubles,
        window=(0.0, 2_000.0),
        engine=EngineModel(notices=notices),
    )
    simulation = run_to_rest(setup)
    totals = simulation.tally.totals
    assert totals["wanted"] > 100
    assert totals["wanted"] == totals["good"] + totals["late"] + totals["failed"]
    assert simulation.clients.open == 0
    gateway = simulation.gateway
    gateway.check_invariants()
    assert not gateway._flights
    assert gateway.retrying == 0
    assert all(engine.running == engine.waiting == 0 for engine in simulation.engines)
    if isinstance(gateway, RuledGateway):
        assert gateway.queues.idle
        assert gateway.queues.count_waiting(POOL) == 0
        assert len(gateway.fleet.streams._slots) == 0


@pytest.mark.parametrize("policy", [PlainPolicy(), LIMITED, RuledPolicy(queue=16)])
def test_a_seed_is_a_run(policy: object) -> None:
    setup = replace(SMALL, policy=policy, troubles=(Lost(0.34, 30.0, 45.0),))
    one, same = Simulation(setup).run().report(), Simulation(setup).run().report()
    assert one == same
    assert Simulation(replace(setup, seed=2)).run().report() != one


def test_the_same_is_wanted_whatever_the_gateway_does() -> None:
    wanted = [
        Simulation(replace(SMALL, policy=policy)).run().report()["course"]["wanted"]
        for policy in (PlainPolicy(), RuledPolicy())
    ]
    assert wanted[0] == wanted[1]


def test_with_little_to_do_everything_is_answered() -> None:
    for policy in (PlainPolicy(), LIMITED, RuledPolicy()):
        report = Simulation(replace(SMALL, policy=policy, load=0.3)).run().report()
        assert report["sent_per_intent"] == 1.0
        assert report["refused"] == {}


def test_the_rules_send_no_more_to_a_replica_than_it_computes() -> None:
    """The engine's own queue is empty at three times the load; without them it is not."""
    queued: dict[bool, int] = {}
    for policy in (RuledPolicy(queue=16), PlainPolicy()):
        simulation = Simulation(replace(SMALL, policy=policy, load=3.0))
        most = 0

        def look(simulation: Simulation = simulation) -> None:
            nonlocal most
            most = max(most, *(engine.waiting for engine in simulation.engines))
            simulation.events.after(0.5, look)

        simulation.events.at(40.0, look)
        simulation.run()
        queued[isinstance(policy, RuledPolicy)] = most
    # A control call, or what a preemption has put back.
    assert queued[True] <= 2
    assert queued[False] > 10


def test_a_check_that_fails_stops_the_run() -> None:
    simulation = Simulation(SMALL)
    simulation.events.at(30.0, setattr, simulation.gateway, "retrying", 5)
    with pytest.raises(AssertionError):
        simulation.run()


def test_replays_stay_within_their_budget() -> None:
    """Two of three replicas die at once: no more than three replays run beside a few requests."""
    simulation = Simulation(replace(SMALL, troubles=(Lost(0.67, 30.0, 45.0),), load=2.0))
    gateway, begun = simulation.gateway, []
    assert isinstance(gateway, RuledGateway)
    lose = gateway._lose

    def note(flight: object) -> None:
        before, requests = gateway.retrying, len(gateway._flights) - gateway.queues.count_waiting(POOL)
        lose(flight)  # type: ignore[arg-type]
        if gateway.retrying > before:
            begun.append((before, requests))

    gateway._lose = note  # type: ignore[method-assign]
    report = simulation.run().report()
    assert len(begun) >= 3
    assert all(before < max(3, 0.2 * requests) for before, requests in begun)
    assert report["refused"]["retry_budget_exhausted"] > 0


def test_one_greedy_caller_costs_the_others_nothing_with_the_rules_alone() -> None:
    troubles = (Greedy(1.5, "chat", 20.0, 70.0),)
    answered: list[float] = []
    for policy in (PlainPolicy(), RuledPolicy(queue=32)):
        setup = replace(SMALL, policy=policy, load=0.6, replicas=4, troubles=troubles)
        greedy = Simulation(replace(setup, window=(30.0, 70.0))).run().report()["greedy"]
        answered.append(greedy["others_answered"])
    assert answered[1] > answered[0]


def test_a_time_without_pages_takes_nobody_out() -> None:
    setup = replace(SMALL, load=0.6, troubles=(Blind(25.0, 60.0),), bursts=replace(SMALL.bursts, high=1.0))
    report = Simulation(setup).run().report()
    assert "no_ready_replica" not in report["refused"]
    assert report["goodput"] > 0.8 * report["offered"]


def test_load_one_is_what_an_engine_does_at_most() -> None:
    model = EngineModel()
    # A full batch: each request takes its part of the steps, and its prompt.
    step_s = model.compute_step_s(model.sequences, 0)
    seconds = compute_mean(ANSWER_TOKENS) * step_s / model.sequences
    slowest = seconds + compute_mean(PROMPT_TOKENS) * model.token_s + 2 * model.base_s
    assert 1 / slowest < measure_capacity(model) < 1 / seconds


def test_the_cases_have_names_of_their_own_and_can_be_built() -> None:
    cases = list_cases()
    assert len({case.name for case in cases}) == len(cases)
    for scenario in {case.scenario for case in cases}:
        setup = Case(scenario, "rules", 0.5, 2, 1).build()
        assert setup.window[1] == setup.until
        assert setup.engine.notices is not scenario.startswith("deaf")
    assert isinstance(build_policy("limited", 10, MODEL), PlainPolicy)
    with pytest.raises(ValueError, match="no policy"):
        build_policy("none", 10, MODEL)


def test_envoy_takes_a_dead_replica_out_when_its_health_checks_say_so() -> None:
    policy = replace(LIMITED, max_requests=None)
    simulation = Simulation(replace(SMALL, policy=policy, troubles=(Lost(0.34, 25.0, 50.0),)))
    gateway = simulation.gateway
    assert isinstance(gateway, PlainGateway)
    seen: list[int] = []
    for at in (24.0, 36.0, 60.0):
        simulation.events.at(at, lambda: seen.append(len(gateway._healthy)))
    simulation.run()
    assert seen == [3, 2, 3]
