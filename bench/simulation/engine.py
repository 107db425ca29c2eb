"""A model of one inference engine with continuous batching, exact to the step.

An engine works in steps. In each, every request that decodes gets one token, and prompts that wait to be
computed get what is left of the step's budget of tokens (chunked prefill, as vLLM and SGLang do it). A step
takes the longer of two times: reading the weights and the caches, or computing its tokens:

    max(base_s + sequence_s * decoding, token_s * (decoding + prompt tokens))

Requests are taken from a queue without bounds, first come first served, while there is a place in the
batch and room in the KV cache for the prompt. When the cache is full the request that came last is put
back and computed anew later (vLLM's preemption by recomputation). A request whose client has gone leaves
with the next step's end.

Between two changes all steps of pure decoding are alike, so they are one event, cut short at the next step's
end by whatever comes in. `tests/bench/test_simulation_engine.py` holds this against a loop over single steps.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush

from bench.simulation.events import Events, Timer


@dataclass(frozen=True)
class EngineModel:
    """What an engine can do. Where each figure comes from: docs/simulation.md."""

    base_s: float = 0.0370
    """Reading the weights once: a step of pure decoding with nobody in it."""
    sequence_s: float = 0.00033
    """What each request in the batch adds to that."""
    token_s: float = 0.000157
    """Computing one token, where computing is the bottleneck."""
    sequences: int = 16
    """Requests in a batch (`--max-num-seqs`)."""
    step_tokens: int = 2048
    """Tokens in a step (`--max-num-batched-tokens`)."""
    kv_tokens: int = 40_000
    """Tokens that the KV cache holds."""
    notices: bool = True
    """Whether it notices that a client has gone, within a step; else it computes on for nobody."""

    def compute_step_s(self, decoding: int, prompt_tokens: int) -> float:
        """How long one step takes."""
        reading = self.base_s + self.sequence_s * decoding
        return max(reading, self.token_s * (decoding + prompt_tokens))


class JobState(Enum):
    """Where a request stands with its engine."""

    WAITING = 1
    PREFILL = 2
    DECODE = 3
    OVER = 4


class Job:
    """One request at one engine."""

    __slots__ = (
        "answer",
        "finish_step",
        "made",
        "on_end",
        "on_first",
        "on_lost",
        "prefill_left",
        "prompt",
        "state",
        "told_first",
    )

    def __init__(
        self,
        prompt: int,
        answer: int,
        on_first: Callable[[], object],
        on_end: Callable[[], object],
        on_lost: Callable[[], object],
    ) -> None:
        self.prompt = prompt
        self.answer = answer
        self.on_first = on_first
        self.on_end = on_end
        self.on_lost = on_lost
        self.state = JobState.WAITING
        self.made = 0
        """Answer tokens that there are, as of its last change of state."""
        self.prefill_left = 0
        self.finish_step = 0
        self.told_first = False


class Engine:
    """One engine; `submit` and `cancel` from outside, the job's callbacks from inside."""

    def __init__(self, events: Events, model: EngineModel) -> None:
        self.alive = True
        self.slowness = 1.0
        """How much longer each step takes than the model says."""
        self.started_at = 0.0
        self.preemptions = 0
        self.finished = 0
        self.busy_s = 0.0
        self.prompt_tokens = 0
        """Computed since it was made, for whomever, and those that were computed twice too."""
        self.answer_tokens = 0
        self._events = events
        self._model = model
        self._clear()

    def _clear(self) -> None:
        self._waiting: deque[Job] = deque()
        self._waiting_count = 0
        self._active: dict[Job, None] = {}
        """In the order in which they were taken in."""
        self._prefilling: deque[Job] = deque()
        self._finishes: list[tuple[int, int, Job]] = []
        self._order = 0
        self._decoding = 0
        self._kv = 0
        self._steps = 0
        self._dropped: list[Job] = []
        self._timer: Timer | None = None
        self._chunk = 0
        self._run_at = 0.0
        self._run_step_s = 0.0
        self._run_steps = 0

    # --- from outside -------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Requests in its queue."""
        return self._waiting_count

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, as of the last change."""
        return min(1.0, self._kv / self._model.kv_tokens)

    @property
    def steps(self) -> int:
        """A counter of its work, at this moment."""
        if self._timer is None or not self._run_step_s:
            return self._steps
        return self._steps + int((self._events.time - self._run_at) / self._run_step_s)

    def submit(self, job: Job) -> bool:
        """One more request; False where nobody listens."""
        if not self.alive:
            return False
        self._waiting.append(job)
        self._waiting_count += 1
        if self._timer is None:
            self._plan()
        elif len(self._active) < self._model.sequences:
            self._cut_short()
        return True

    def cancel(self, job: Job) -> None:
        """Its client has gone. It hears nothing more, and leaves with the end of the step."""
        if job.state is JobState.OVER:
            return
        job.on_first = job.on_end = job.on_lost = _nothing
        if not self._model.notices:
            return
        if job.state is JobState.WAITING:
            job.state = JobState.OVER
            self._waiting_count -= 1
            return
        self._dropped.append(job)
        self._cut_short()

    def kill(self) -> None:
        """The process ends, and every connection with it."""
        self.alive = False
        if self._timer is not None:
            self._timer.cancel()
            self._count_work(int((self._events.time - self._run_at) / self._run_step_s))
        lost = [*self._active, *(job for job in self._waiting if job.state is JobState.WAITING)]
        for job in lost:
            self._settle(job)
            job.state = JobState.OVER
        self._clear()
        for job in lost:
            job.on_lost()

    def start(self) -> None:
        """Another process takes its place, with nothing in hand."""
        self.alive = True
        self.started_at = self._events.time

    # --- steps --------------------------------------------------------------------------------

    def _cut_short(self) -> None:
        """Let a run of decoding end with the step that is under way."""
        if self._timer is None or self._run_steps <= 1:
            return
        done = (self._events.time - self._run_at) / self._run_step_s
        steps = max(1, math.ceil(done - 1e-9))
        if steps < self._run_steps:
            self._timer.cancel()
            self._run_steps = steps
            end = self._run_at + steps * self._run_step_s
            self._timer = self._events.at(end, self._end_run)

    def _end_run(self) -> None:
        """The steps are over that were planned last."""
        self._timer = None
        self._count_work(self._run_steps)
        told: list[Callable[[], object]] = []
        if self._chunk:
            self._end_prefills(told)
        while self._finishes and self._finishes[0][0] <= self._steps:
            finish_step, _, job = heappop(self._finishes)
            if job.state is JobState.DECODE and job.finish_step == finish_step:
                self._end(job)
                self.finished += 1
                told.append(job.on_end)
        for job in self._dropped:
            if job.state in (JobState.PREFILL, JobState.DECODE):
                self._end(job)
        self._dropped.clear()
        self._plan()
        for call in told:
            call()

    def _count_work(self, steps: int) -> None:
        self._steps += steps
        self._kv += steps * self._decoding
        self.answer_tokens += steps * self._decoding
        self.busy_s += steps * self._run_step_s

    def _end_prefills(self, told: list[Callable[[], object]]) -> None:
        left = self._chunk
        while left and self._prefilling:
            job = self._prefilling[0]
            if job.state is not JobState.PREFILL:
                self._prefilling.popleft()
                continue
            part = min(left, job.prefill_left)
            job.prefill_left -= part
            self.prompt_tokens += part
            left -= part
            if job.prefill_left:
                break
            self._prefilling.popleft()
            self._begin_decode(job)
            if not job.told_first:
                job.told_first = True
                told.append(job.on_first)

    def _begin_decode(self, job: Job) -> None:
        """Its prompt is computed, and with it the next token."""
        job.state = JobState.DECODE
        job.made += 1
        self.answer_tokens += 1
        self._kv += 1
        job.finish_step = self._steps + job.answer - job.made
        self._decoding += 1
        self._order += 1
        heappush(self._finishes, (job.finish_step, self._order, job))

    def _settle(self, job: Job) -> None:
        """Count what was made for it since it began to decode."""
        if job.state is JobState.DECODE:
            job.made = job.answer - (job.finish_step - self._steps)

    def _leave(self, job: Job) -> None:
        """Out of the batch, with its part of the cache."""
        self._settle(job)
        del self._active[job]
        if job.state is JobState.DECODE:
            self._decoding -= 1
        else:
            self._prefilling.remove(job)
        self._kv -= job.prompt + job.made

    def _end(self, job: Job) -> None:
        self._leave(job)
        job.state = JobState.OVER

    def _preempt(self) -> None:
        """Put back whoever came last; its answer so far is computed again with its prompt."""
        job = next(reversed(self._active))
        self._leave(job)
        job.state = JobState.WAITING
        self._waiting.appendleft(job)
        self._waiting_count += 1
        self.preemptions += 1

    def _plan(self) -> None:
        """What comes next, at the end of a step."""
        while self._kv + self._decoding > self._model.kv_tokens and len(self._active) > 1:
            self._preempt()
        self._take_in()
        self._chunk = 0
        if self._prefilling:
            left = sum(job.prefill_left for job in self._prefilling)
            self._chunk = max(1, min(left, self._model.step_tokens - self._decoding))
            steps = 1
        elif self._decoding:
            steps = self._count_steps()
        else:
            return
        self._run_at, self._run_steps = self._events.time, steps
        self._run_step_s = self.slowness * self._model.compute_step_s(self._decoding, self._chunk)
        self._timer = self._events.after(steps * self._run_step_s, self._end_run)

    def _take_in(self) -> None:
        while self._waiting and len(self._active) < self._model.sequences:
            job = self._waiting[0]
            if job.state is not JobState.WAITING:
                self._waiting.popleft()
                continue
            need = job.prompt + job.made
            if self._active and self._kv + need + self._decoding > self._model.kv_tokens:
                return
            self._waiting.popleft()
            self._waiting_count -= 1
            job.state, job.prefill_left = JobState.PREFILL, need
            self._active[job] = None
            self._prefilling.append(job)
            self._kv += need

    def _count_steps(self) -> int:
        """How many steps are alike: until one is done, or the cache is full."""
        while True:
            finish_step, _, job = self._finishes[0]
            if job.state is JobState.DECODE and job.finish_step == finish_step:
                break
            heappop(self._finishes)
        room = (self._model.kv_tokens - self._kv) // self._decoding
        return max(1, min(finish_step - self._steps, room))


def _nothing() -> None:
    """Nobody listens any more."""
