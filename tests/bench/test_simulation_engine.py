"""The model of an engine against a loop over single steps, and against closed forms."""

import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulation.engine import Engine, EngineModel, Job, JobState
from bench.simulation.events import Events

MODEL = EngineModel(sequences=4, step_tokens=64, kv_tokens=300)


class Played:
    """Jobs sent to an engine at given times, and when each of them began and ended to answer."""

    def __init__(self, model: EngineModel) -> None:
        self.events = Events()
        self.engine = Engine(self.events, model)
        self.first: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.lost: set[int] = set()
        self.jobs: list[Job] = []

    def submit(self, prompt: int, answer: int) -> Job:
        number = len(self.jobs)
        job = Job(
            prompt,
            answer,
            lambda: self.first.setdefault(number, self.events.time),
            lambda: self.end.setdefault(number, self.events.time),
            lambda: self.lost.add(number),
        )
        self.jobs.append(job)
        assert self.engine.submit(job)
        return job


def loop_over_steps(
    model: EngineModel, arrivals: list[tuple[float, int, int]]
) -> tuple[dict[int, float], dict[int, float], int]:
    """The same engine, written as the loop that an engine is: one turn for one step."""
    first: dict[int, float] = {}
    end: dict[int, float] = {}
    coming = deque((at, number, prompt, answer) for number, (at, prompt, answer) in enumerate(arrivals))
    waiting: deque[dict[str, int]] = deque()
    active: list[dict[str, int]] = []
    now, preempted = 0.0, 0

    def take_arrivals() -> None:
        while coming and coming[0][0] <= now + 1e-9:
            _, number, prompt, answer = coming.popleft()
            waiting.append({"number": number, "prompt": prompt, "answer": answer, "made": 0, "left": 0})

    def used() -> int:
        return sum(one["prompt"] + one["made"] for one in active)

    while coming or waiting or active:
        take_arrivals()
        if not waiting and not active:
            now = coming[0][0]
            continue
        decoding = [one for one in active if not one["left"]]
        while used() + len(decoding) > model.kv_tokens and len(active) > 1:
            out = active.pop()
            preempted += 1
            waiting.appendleft(out)
            decoding = [one for one in active if not one["left"]]
        while waiting and len(active) < model.sequences:
            need = waiting[0]["prompt"] + waiting[0]["made"]
            if active and used() + need + len(decoding) > model.kv_tokens:
                break
            one = waiting.popleft()
            one["left"] = need
            active.append(one)
        budget = model.step_tokens - len(decoding)
        parts: list[tuple[dict[str, int], int]] = []
        for one in active:
            part = min(budget, one["left"])
            if part:
                parts.append((one, part))
                budget -= part
        now += model.compute_step_s(len(decoding), sum(part for _, part in parts))
        for one in decoding:
            one["made"] += 1
        for one, part in parts:
            one["left"] -= part
            if not one["left"]:
                one["made"] += 1
                first.setdefault(one["number"], now)
        for one in list(active):
            if not one["left"] and one["made"] >= one["answer"]:
                end[one["number"]] = now
                active.remove(one)
    return first, end, preempted


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 150), st.integers(1, 60)), min_size=1, max_size=25)
)
def test_runs_of_steps_are_what_single_steps_are(arrivals: list[tuple[float, int, int]]) -> None:
    arrivals.sort(key=lambda one: one[0])
    # No two at once, and none with the end of a step: the order of those is nobody's business.
    arrivals = [(at + number * 1.7e-4, *rest) for number, (at, *rest) in enumerate(arrivals)]
    played = Played(MODEL)
    for at, prompt, answer in arrivals:
        played.events.at(at, played.submit, prompt, answer)
    played.events.run(10_000.0)
    first, end, preempted = loop_over_steps(MODEL, arrivals)
    assert played.first == pytest.approx(first)
    assert played.end == pytest.approx(end)
    assert played.engine.preemptions == preempted
    assert (played.engine.running, played.engine.waiting, played.engine.kv_usage) == (0, 0, 0.0)


def test_one_request_alone_takes_a_step_for_each_chunk_and_each_token() -> None:
    model = EngineModel()
    played = Played(model)
    played.submit(prompt=2500, answer=11)
    played.events.run(100.0)
    prefill_s = model.compute_step_s(0, 2048) + model.compute_step_s(0, 452)
    assert played.first[0] == pytest.approx(prefill_s)
    assert played.end[0] == pytest.approx(prefill_s + 10 * model.compute_step_s(1, 0))


def test_a_batch_that_is_always_full_has_the_rate_of_its_steps() -> None:
    """M/D/c at its limit: so many places, each taken for prefill and decode, one after the other."""
    model = EngineModel(sequences=8, step_tokens=4096)
    played = Played(model)
    for _ in range(800):
        played.submit(prompt=1, answer=200)
    played.events.run(100_000.0)
    step_s = model.compute_step_s(8, 0)
    # 8 at a time: one step of prompts, 199 of tokens, then the next 8; the very first comes in alone.
    assert max(played.end.values()) == pytest.approx(
        100 * (199 * step_s + model.compute_step_s(0, 8)), abs=model.base_s + 1e-6
    )


def test_few_requests_wait_as_erlang_says() -> None:
    """Poisson arrivals, exponential answers, c places, steps of one length: M/M/c waits as Erlang says."""
    places, mean_tokens, load = 4, 100, 0.7
    model = EngineModel(base_s=0.01, sequence_s=0.0, token_s=0.0, sequences=places, kv_tokens=10**9)
    random_source = random.Random(5)
    played, waited = Played(model), []
    service_s = mean_tokens * 0.01
    rate = load * places / service_s

    def arrive() -> None:
        at = played.events.time
        job = played.submit(1, max(1, round(random_source.expovariate(1 / mean_tokens))))
        job.on_first = lambda: waited.append(played.events.time - at)
        played.events.after(random_source.expovariate(rate), arrive)

    arrive()
    played.events.run(20_000.0)
    offered = load * places
    below = sum(offered**k / _factorial(k) for k in range(places))
    top = offered**places / _factorial(places) / (1 - load)
    erlang_s = top / (below + top) * service_s / (places - offered)
    # The first token takes its own step, and a newcomer half of one in the mean to be seen.
    assert sum(waited) / len(waited) - 0.015 == pytest.approx(erlang_s, rel=0.1)


def _factorial(number: int) -> int:
    return 1 if number < 2 else number * _factorial(number - 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_every_request_ends_once_whatever_happens(seed: int, notices: bool) -> None:
    source = random.Random(seed)
    played = Played(replace(MODEL, notices=notices))
    cancelled: set[int] = set()

    def cancel(number: int) -> None:
        if number not in played.end and number not in played.lost:
            cancelled.add(number)
        played.engine.cancel(played.jobs[number])

    def submit() -> None:
        if played.engine.alive:
            played.submit(source.randint(1, 150), source.randint(1, 60))
            if source.random() < 0.3:
                played.events.after(source.uniform(0, 3), cancel, len(played.jobs) - 1)

    for _ in range(40):
        played.events.at(source.uniform(0, 10), submit)
    if source.random() < 0.5:
        played.events.at(5.0, played.engine.kill)
        played.events.at(6.0, played.engine.start)
    played.events.run(1_000.0)
    everyone = set(range(len(played.jobs)))
    assert set(played.end) | played.lost | cancelled == everyone
    assert not set(played.end) & played.lost
    assert not cancelled & (set(played.end) | played.lost)
    assert all(job.state is JobState.OVER for job in played.jobs)
    assert (played.engine.running, played.engine.waiting, played.engine.kv_usage) == (0, 0, 0.0)
    assert set(played.end) <= set(played.first)
