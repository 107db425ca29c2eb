"""A job has at most one run that may act, one end, and nothing begins after it, whoever dies, comes late or
is told nothing.

Three gateways at one store claim jobs and send their runs. A run that was sent arrives at any time, once,
twice or never, also at a gateway that was found gone and has another seat by then. Answers of the store get
lost, so that calls are made again. What a gateway knows of a job may be old.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import event, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.errors import NotOwner, RunNotOver, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import ENDED, UNFINISHED, Job, JobBounds, JobEnd, JobsFull, JobState
from envoy_ext.domain.operation import Operation
from envoy_ext.ports import Store
from tests.support.jobs import BODY, NAMED, REQUEST, job_end, new_job
from tests.support.journals import ANSWER, run_now
from tests.support.records import START, attempt_started, begun, ended
from tests.support.redis_server import RedisServer
from tests.support.store_pairs import StorePairs

EVERY = UNFINISHED | ENDED
ROOM = JobBounds(max_jobs=4, max_bytes=4 * len(BODY))
GATEWAYS = st.integers(0, 2)
JOBS = st.integers(0, 5)
KEYS = st.sampled_from([None, "key-1", "key-2"])
REFUSALS = (NotOwner, SeatLost, RunNotOver)


@dataclass(frozen=True)
class Sent:
    """A run on its way to its gateway."""

    gateway: int
    job_id: OperationId
    run_id: OperationId


class JobsMachine(RuleBasedStateMachine):
    """Over memory alone; `AllStores` adds the others."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryJournal(exclusive=False)
        self.seats: list[SeatId] = []
        self.job_ids: list[OperationId] = []
        self.known: dict[tuple[int, OperationId], Job] = {}
        """What each gateway has seen last of a job."""
        self.sent: list[Sent] = []
        self.begun: dict[OperationId, list[OperationId]] = {}
        """The runs of each job that have begun, in order."""
        self.ends: dict[OperationId, tuple[JobEnd, int]] = {}
        """The first end that was seen of each job, and how many of its runs had begun by then."""
        self.owners: dict[tuple[OperationId, FencingToken], int] = {}
        self.names = itertools.count(1)

    def ask(self, gateway: int, ask: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """The answer, or the kind of refusal, which is that of every store."""
        return _answer(run_now, ask(self.memory))

    def write(self, gateway: int, lost: bool, ask: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """The answer; where the first one is lost, that of the same call again."""
        answer = self.ask(gateway, ask)
        if lost:
            assert self.ask(gateway, ask) == answer
        return answer

    def learn(self, gateway: int, answer: Any) -> Job | None:
        """What an answer tells a gateway."""
        if not isinstance(answer, Job):
            return None
        self.known[gateway, answer.job_id] = answer
        if answer.end is not None:
            runs = len(self.begun[answer.job_id])
            first, _ = self.ends.setdefault(answer.job_id, (answer.end, runs))
            assert answer.end == first, "the first end stays"
        return answer

    def pick(self, gateway: int, number: int, fresh: bool, *states: JobState) -> Job | None:
        """A job as a gateway knows it, in one of these states by its knowledge, if there is one."""
        if fresh:
            self.look(gateway)
        jobs = [job for (knows, _), job in self.known.items() if knows == gateway]
        jobs = [job for job in jobs if job.state in states] or jobs
        return jobs[number % len(jobs)] if jobs else None

    def own(self, gateway: int, job: Job) -> None:
        assert self.owners.setdefault((job.job_id, job.token), gateway) == gateway, "one claim wins"

    def list_operations(self) -> list[Operation]:
        found: list[Operation] = run_now(self.memory.list_recent(1_000))
        return found

    @initialize()
    def start(self) -> None:
        self.seats = [SeatId(self.ask(0, lambda store: store.take_seat("gw"))) for _ in range(3)]
        # Each example goes without some of the rules, and shall have jobs also without that of clients.
        self.submit(0, None, lost=False)
        self.submit(0, "key-1", lost=False)
        self.claim(0, 0, fresh=True, lost=False, arrives=False)

    # --- the rules: few, since each example goes without some of them ---------------------------

    @rule(
        gateway=GATEWAYS,
        what=st.sampled_from([*["submit"] * 3, "cancel", "ask at once"]),
        key=KEYS,
        number=JOBS,
        lost=st.booleans(),
    )
    def a_client_asks(self, gateway: int, what: str, key: str | None, number: int, lost: bool) -> None:
        if what == "submit":
            self.submit(gateway, key, lost)
        elif what == "cancel":
            self.cancel(gateway, number, lost)
        elif key is not None:
            self.ask_at_once(gateway, key)

    @rule(
        gateway=GATEWAYS,
        what=st.sampled_from([*["claim"] * 4, *["release"] * 2, *["finish"] * 2, "take over", "end others"]),
        number=JOBS,
        fresh=st.sampled_from([True, True, True, False]),
        state=st.sampled_from(sorted(ENDED)),
        arrives=st.booleans(),
        lost=st.booleans(),
    )
    def a_gateway_acts(
        self,
        gateway: int,
        what: str,
        number: int,
        fresh: bool,
        state: JobState,
        arrives: bool,
        lost: bool,
    ) -> None:
        match what:
            case "claim":
                self.claim(gateway, number, fresh, lost, arrives)
            case "release":
                self.release(gateway, number, fresh, lost)
            case "finish":
                self.finish(gateway, number, fresh, state, lost)
            case "take over":
                self.take_over_jobs(gateway, lost)
            case _:
                self.end_what_others_left(gateway)

    @rule(number=JOBS, arrives=st.booleans(), again=st.booleans(), lost=st.booleans())
    def a_run_goes_on(self, number: int, arrives: bool, again: bool, lost: bool) -> None:
        if arrives:
            self.arrive(number, again, lost)
        else:
            self.end_a_run(number, again)

    @rule(gateway=GATEWAYS, what=st.sampled_from(["is gone", "is gone, and back", "is back"]))
    def a_gateway_comes_late(self, gateway: int, what: str) -> None:
        if what != "is back":
            self.is_found_gone(gateway)
        if what != "is gone":
            self.comes_back(gateway)

    @rule(gateway=GATEWAYS, limit=st.integers(1, 3), results=st.booleans())
    def time_passes(self, gateway: int, limit: int, results: bool) -> None:
        self.forget(gateway, limit, results)

    # --- clients ------------------------------------------------------------------------------

    def submit(self, gateway: int, key: str | None, lost: bool) -> None:
        job_id = OperationId(f"op_{next(self.names)}")
        new = new_job(job_id, key_hash=key)
        named = (*NAMED, key or "")
        holder = self.ask(gateway, lambda store: store.find_job(*named)) if key else None
        earlier = self.ask(gateway, lambda store: store.find_by_key(*named)) if key else None
        before = self.ask(gateway, lambda store: store.count_jobs())
        answer = self.write(gateway, lost, lambda store: store.submit_job(new, REQUEST, ROOM))
        event(f"submit {type(answer).__name__} {holder is not None}")
        if holder is not None or earlier is not None:
            assert answer == (holder or earlier), "a key is one job, or one operation"
        elif isinstance(answer, JobsFull):
            assert before.unfinished == ROOM.max_jobs
        else:
            assert answer.job_id == job_id
            self.job_ids.append(job_id)
            self.begun[job_id] = []
            self.learn(gateway, answer)

    def ask_at_once(self, gateway: int, key: str) -> None:
        """The same key, by a client that waits for its answer."""
        operation = begun(f"op_{next(self.names)}", key_hash=key)
        holder = self.ask(gateway, lambda store: store.find_job(*NAMED, key))
        seat = self.seats[gateway]
        answer = self.ask(gateway, lambda store: store.begin(operation, seat))
        if holder is not None and answer is not SeatLost:
            assert answer == holder
        if answer is None:
            last = ended(operation.operation_id)
            self.ask(gateway, lambda store: store.append([last], FencingToken(1)))

    def cancel(self, gateway: int, number: int, lost: bool) -> None:
        job = self.pick(gateway, number, True, *UNFINISHED)
        if job is None:
            return
        now = self.learn(gateway, self.ask(gateway, lambda store: store.read_job(job.job_id)))
        answer = self.write(gateway, lost, lambda store: store.cancel_job(job.job_id, START + 1))
        after = self.learn(gateway, answer)
        if now is not None and now.state is JobState.QUEUED:
            assert after is not None
            assert after.state is JobState.CANCELLED

    # --- gateways -----------------------------------------------------------------------------

    def look(self, gateway: int) -> None:
        for job in self.ask(gateway, lambda store: store.list_jobs(EVERY, 100)):
            self.learn(gateway, job)

    def claim(self, gateway: int, number: int, fresh: bool, lost: bool, arrives: bool) -> None:
        job = self.pick(gateway, number, fresh, JobState.QUEUED)
        if job is None:
            return
        first = not job.run_ids and job.token == 0
        run_id = job.job_id if first else OperationId(f"op_{next(self.names)}")
        job_id, token, seat = job.job_id, job.token, self.seats[gateway]
        answer = self.write(gateway, lost, lambda store: store.claim_job(job_id, token, seat, run_id))
        event(f"claim {answer if isinstance(answer, type) else 'done'}")
        claimed = self.learn(gateway, answer)
        if claimed is not None:
            self.own(gateway, claimed)
            self.sent.append(Sent(gateway, job_id, run_id))
            if arrives:
                self.arrive(-1, stays=False, lost=lost)

    def arrive(self, number: int, stays: bool, lost: bool) -> None:
        """A run that was sent reaches its gateway, whatever seat that has by now."""
        if not self.sent:
            return
        one = self.sent[number % len(self.sent)]
        if not stays:
            self.sent.remove(one)
        job: Job | None = self.ask(one.gateway, lambda store: store.read_job(one.job_id))
        seat = self.seats[one.gateway]
        record = begun(one.run_id, job_id=one.job_id)
        answer = self.write(one.gateway, lost, lambda store: store.begin(record, seat))
        event(f"arrive {answer}")
        if answer is None and one.run_id not in self.begun[one.job_id]:
            assert job is not None
            assert (job.state, job.run_id, job.owner) == (JobState.RUNNING, one.run_id, seat)
            self.begun[one.job_id].append(one.run_id)
            started = attempt_started(one.run_id, f"att_of_{one.run_id}")
            self.ask(one.gateway, lambda store: store.append([started], FencingToken(1)))

    def end_a_run(self, number: int, answered: bool) -> None:
        """By the gateway that has begun it, and still owns it."""
        owned = [one for one in self.list_operations() if one.ending is None and one.owner in self.seats]
        if not owned:
            return
        operation = owned[number % len(owned)]
        gateway = self.seats.index(operation.owner or SeatId(""))
        last = ended(operation.operation_id)
        answer = ANSWER if answered else None
        self.ask(gateway, lambda store: store.append([last], operation.token, answer))

    def release(self, gateway: int, number: int, fresh: bool, lost: bool) -> None:
        job = self.pick(gateway, number, fresh, JobState.RUNNING)
        if job is not None:
            answer = self.write(
                gateway, lost, lambda store: store.release_job(job.job_id, job.token, START + 2)
            )
            event(f"release {answer if isinstance(answer, type) else answer.state}")
            self.learn(gateway, answer)

    def finish(self, gateway: int, number: int, fresh: bool, state: JobState, lost: bool) -> None:
        """Also of a queued job, which has become too old."""
        job = self.pick(gateway, number, fresh, *UNFINISHED)
        if job is not None:
            end = job_end(state)
            answer = self.write(gateway, lost, lambda store: store.finish_job(job.job_id, job.token, end))
            self.learn(gateway, answer)

    # --- what befalls them --------------------------------------------------------------------

    def is_found_gone(self, gateway: int) -> None:
        seat = self.seats[gateway]
        self.ask((gateway + 1) % 3, lambda store: store.remove_seat(seat, 1))

    def comes_back(self, gateway: int) -> None:
        if self.seats[gateway] not in self.ask(gateway, lambda store: store.read_seats()):
            self.seats[gateway] = SeatId(self.ask(gateway, lambda store: store.take_seat("gw")))

    def take_over_jobs(self, gateway: int, lost: bool) -> None:
        seat = self.seats[gateway]
        there = self.ask(gateway, lambda store: store.read_seats())
        for job in self.ask(gateway, lambda store: store.list_jobs(frozenset({JobState.RUNNING}), 100)):
            answer = self.write(
                gateway, lost, lambda store, job=job: store.take_over_job(job.job_id, job.token, seat)
            )
            event(f"take over {answer if isinstance(answer, type) else 'done'}")
            taken = self.learn(gateway, answer)
            if taken is not None:
                assert job.owner not in there
                self.own(gateway, taken)

    def end_what_others_left(self, gateway: int) -> None:
        seat = self.seats[gateway]
        seats = self.ask(gateway, lambda store: store.read_seats())
        for one in self.list_operations():
            if one.ending is not None or one.owner in seats:
                continue
            taken = self.ask(
                gateway,
                lambda store, one=one: store.take_over(one.operation_id, one.token, seat, START),
            )
            if isinstance(taken, Operation):
                last = ended(one.operation_id)
                self.ask(gateway, lambda store, last=last, taken=taken: store.append([last], taken.token))

    def forget(self, gateway: int, limit: int, results: bool) -> None:
        if results:
            self.ask(gateway, lambda store: store.forget_results(START + 1e6, limit))
            return
        self.ask(gateway, lambda store: store.forget(START + 1e6, limit))
        for job_id in list(self.job_ids):
            if self.ask(gateway, lambda store, job_id=job_id: store.read_job(job_id)) is None:
                assert job_id in self.ends, "one that has not ended never goes"
                self.job_ids.remove(job_id)
                self.known = {name: job for name, job in self.known.items() if name[1] != job_id}

    # --- what is true -------------------------------------------------------------------------

    @invariant()
    def each_job_is_as_its_history_says(self) -> None:
        for job_id in self.job_ids:
            job: Job = run_now(self.memory.read_job(job_id))  # type: ignore[assignment]
            self.learn(0, job) if (0, job_id) not in self.known else None
            runs = self.begun[job_id]
            waits = job.state is JobState.RUNNING and job.run_id not in runs
            assert list(job.run_ids) == [*runs, *([job.run_id] if waits else [])]
            request = run_now(self.memory.read_job_request(job_id))
            assert request == (None if job.ended else REQUEST), "it goes with the end"
            assert job.cancel_requested_at is None or job.state is not JobState.QUEUED, (
                "it shall not run again"
            )
            if job.ended:
                assert job.end is not None
                first, runs_then = self.ends.setdefault(job_id, (job.end, len(runs)))
                assert (job.end, len(runs)) == (first, runs_then), "after an end nothing begins"

    @invariant()
    def no_two_runs_of_a_job_may_act(self) -> None:
        open_runs = Counter(one.job_id for one in self.list_operations() if one.ending is None and one.job_id)
        assert all(count == 1 for count in open_runs.values())

    @invariant()
    def what_an_unfinished_job_needs_is_there(self) -> None:
        there = {one.operation_id for one in self.list_operations()}
        for job_id in self.job_ids:
            if job_id not in self.ends:
                assert set(self.begun[job_id]) <= there

    @invariant()
    def unfinished_jobs_are_counted(self) -> None:
        jobs = run_now(self.memory.list_jobs(UNFINISHED, 100))
        counts = run_now(self.memory.count_jobs())
        assert counts.unfinished == len(jobs) <= ROOM.max_jobs
        assert counts.request_bytes == len(jobs) * len(BODY)


class AllStores(JobsMachine):
    """The file, and the journal at Redis, are open at three gateways.

    Now and then the machine of the file stops, and another goes on with its disk.
    """

    def __init__(self, redis: RedisServer) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.others = StorePairs(redis, 3, self.runner.run)

    def ask(self, gateway: int, ask: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        answer = super().ask(gateway, ask)
        for other in self.others.opened[gateway]:
            assert _answer(self.runner.run, ask(other)) == answer
        return answer

    def teardown(self) -> None:
        self.others.end()
        self.runner.close()

    @rule()
    def stop_and_go_on_with_the_disk(self) -> None:
        self.others.go_on_with_the_disk()

    @invariant()
    def all_stores_hold_the_same(self) -> None:
        self.ask(0, lambda store: store.list_jobs(EVERY, 100))
        self.ask(1, lambda store: store.list_orphaned_jobs(100))
        self.ask(2, lambda store: store.count_jobs())
        self.ask(0, lambda store: store.list_recent(100))
        for job_id in self.job_ids:
            self.ask(1, lambda store, job_id=job_id: store.read_job_request(job_id))
            for run_id in self.begun[job_id]:
                self.ask(2, lambda store, run_id=run_id: store.read_answer(run_id))


def _answer(run: Callable[[Any], Any], work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return run(work)
    except REFUSALS as refusal:
        return type(refusal)


JobsMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=60, deadline=None)
TestJobs = JobsMachine.TestCase


def test_all_stores_keep_jobs_alike(redis: RedisServer) -> None:
    bounds = settings(max_examples=8, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(lambda: AllStores(redis), settings=bounds)
