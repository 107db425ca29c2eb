"""Calls on their way to Redis: what is asked while an answer is awaited goes with the next round.

A round is a pipeline on one connection: the scripts of all its calls, and behind them one WAIT where
replicas are to confirm. So a hundred exchanges that append at once pay for one trip and one wait. A round
whose answer is lost is sent again, after a jittered back-off and within the time that its calls have: every
call of the journal may be repeated. What Redis has refused is repeated only where the next moment can bring
another answer.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from envoy_ext.adapters.journal_redis_faults import build_unavailable
from envoy_ext.adapters.journal_redis_scripts import Script
from envoy_ext.adapters.journal_redis_way import Way
from envoy_ext.domain.errors import JournalUnavailable

CALL_S: Final = 3.0
"""How long a call may take, its repeats included: shorter than a lease, so that a gateway whose store is
away says so while it may still act."""
MAX_QUEUED_CALLS: Final = 10_000
"""Calls that may wait. Envoy's own default lets 1,024 exchanges through at once: ten times that means
that the store has stopped."""
MAX_ROUND: Final = 256
"""Calls in one round: Redis does nothing else while it runs each of them."""
BACKOFF_S: Final = (0.25, 0.02)
"""Of repeats: the longest and the first, each with jitter."""

_LATER: Final = (
    exceptions.ReadOnlyError,
    exceptions.AskError,  # and MovedError
    exceptions.TryAgainError,
    exceptions.ClusterDownError,  # and MasterDownError
)
"""Answers that may be others a moment later: a failover or a move of the slot is going on."""
_WAY_LOST: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    OSError,
    exceptions.RedisClusterException,
)
_REPEATED: Final[Any] = (*_WAY_LOST, *_LATER)
"""Any: the client's own type for it knows no errors but its own."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas are to have each write before it counts as done, and how long they may take."""

    count: int
    timeout_s: float


@dataclass(slots=True, eq=False)
class _Call:
    script: Script | None
    """None: a plain command."""
    words: tuple[Any, ...]
    done: asyncio.Future[Any]
    expiry: asyncio.TimerHandle | None = None
    expired: bool = False


class Lane:
    """One queue of calls and the task that serves it, in order. Used from one event loop."""

    def __init__(
        self, way: Way, place: str, what: str, replicas: Replicas | None = None, call_s: float = CALL_S
    ) -> None:
        self._way = way
        self._place = place
        self._what = what
        self._replicas = replicas
        self._call_s = call_s + (replicas.timeout_s if replicas else 0.0)
        self._queued: deque[_Call] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._fault: Exception | None = None
        """Why the last try of the round under way has failed."""

    def submit(self, script: Script | None, *words: Any) -> asyncio.Future[Any]:
        """Queue a script's call or a plain command; the future ends with its answer, in the time of a call.

        `JournalUnavailable` when there is none, or when it is a refusal by the server.
        """
        loop = asyncio.get_running_loop()
        if len(self._queued) >= MAX_QUEUED_CALLS:
            raise JournalUnavailable(f"the journal at {self._place} is {MAX_QUEUED_CALLS} calls behind")
        call = _Call(script, words, loop.create_future())
        call.expiry = loop.call_later(self._call_s, self._expire, call)
        self._queued.append(call)
        if self._serving is None or self._serving.done():
            self._serving = loop.create_task(self._serve())
        return call.done

    async def flush(self) -> None:
        """Until everything that was queued has its answer."""
        while self._serving is not None and not self._serving.done():
            await asyncio.wait([self._serving])

    def _expire(self, call: _Call) -> None:
        call.expired = True
        self._fail(call, self._fault or TimeoutError())

    async def _serve(self) -> None:
        while self._queued:
            calls = [self._queued.popleft() for _ in range(min(MAX_ROUND, len(self._queued)))]
            round_ = _Round([call for call in calls if not call.expired])
            try:
                async with asyncio.timeout(self._call_s):
                    await self._build_retry().call_with_retry(
                        partial(self._try, round_), self._mend, is_retryable=self._may_pass
                    )
            except TimeoutError as over:
                self._fail_all(round_, self._fault or over)
            except Exception as fault:
                # Anything: this is the only task that serves the lane, and callers wait for its word.
                self._fail_all(round_, fault)
            self._fault = None

    def _build_retry(self) -> Retry:
        longest, first = BACKOFF_S
        # No count of repeats: the time of the calls ends them.
        return Retry(ExponentialWithJitterBackoff(longest, first), -1, _REPEATED)

    def _may_pass(self, fault: Exception) -> bool:
        """A wrong password stays wrong, and so does a server that is a node of a cluster."""
        if isinstance(fault, exceptions.AskError):
            return self._way.follows
        return not isinstance(fault, exceptions.AuthenticationError | exceptions.AuthorizationError)

    async def _mend(self, fault: Exception) -> None:
        self._fault = fault
        await self._way.mend()

    async def _try(self, round_: "_Round") -> None:
        """Send what is left of a round and settle what has an answer; raises what may be repeated."""
        round_.left = [call for call in round_.left if not call.expired]
        if not round_.left:
            return
        answers = await self._send(round_.left, known=True)
        unknown = [
            call
            for call, answer in zip(round_.left, answers, strict=True)
            if isinstance(answer, exceptions.NoScriptError)
        ]
        self._settle(round_, answers)
        if unknown:
            # Refused before it ran: the server was restarted, or has never seen the script.
            self._settle(round_, await self._send(round_.left, known=False))

    def _settle(self, round_: "_Round", answers: Sequence[Any]) -> None:
        left, again = [], None
        for call, answer in zip(round_.left, answers, strict=True):
            if isinstance(answer, exceptions.NoScriptError):
                left.append(call)
            elif isinstance(answer, _LATER):
                left.append(call)
                again = answer
            elif isinstance(answer, Exception):
                self._fail(call, answer)
            else:
                self._end(call)
                if not call.done.done():
                    call.done.set_result(answer)
        round_.left = left
        if again is not None:
            raise again

    async def _send(self, calls: Sequence[_Call], *, known: bool) -> list[Any]:
        """The answers to these calls; `known`: the server has their scripts."""
        client = await self._way.find()
        pipeline = client.pipeline(transaction=False)
        for call in calls:
            if call.script is None:
                pipeline.execute_command(*call.words)
            elif known:
                pipeline.execute_command("EVALSHA", call.script.sha, 1, *call.words)
            else:
                pipeline.execute_command("EVAL", call.script.text, 1, *call.words)
        if self._replicas is not None:
            # On the connection of the calls: WAIT counts those that have what this one has written. Behind a
            # call that wrote nothing it waits for all that was written before, by whomever; so a repeat may
            # rely on it.
            pipeline.execute_command("WAIT", self._replicas.count, round(self._replicas.timeout_s * 1000))
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        if self._replicas is not None:
            confirmed = answers.pop()
            if isinstance(confirmed, Exception):
                if "replica" in str(confirmed):  # so says one that became a replica
                    confirmed = exceptions.ReadOnlyError(str(confirmed))
                answers = [one if isinstance(one, Exception) else confirmed for one in answers]
            elif confirmed < self._replicas.count:
                answers = [
                    one if isinstance(one, Exception) else _TooFew(confirmed, self._replicas)
                    for one in answers
                ]
        return answers

    def _fail_all(self, round_: "_Round", fault: Exception) -> None:
        for call in round_.left:
            self._fail(call, fault)

    def _fail(self, call: _Call, fault: Exception) -> None:
        self._end(call)
        if not call.done.done():
            call.done.set_exception(build_unavailable(self._place, self._what, fault))

    @staticmethod
    def _end(call: _Call) -> None:
        if call.expiry is not None:
            call.expiry.cancel()


@dataclass(slots=True)
class _Round:
    left: list[_Call]
    """What has no answer yet."""


class _TooFew(JournalUnavailable):
    """Done at the master, and not yet where the configuration wants it."""

    def __init__(self, confirmed: int, wanted: Replicas) -> None:
        super().__init__(
            f"{confirmed} of {wanted.count} replicas have confirmed within {wanted.timeout_s:g} s: "
            "see whether they run, or lower journal.wait_replicas"
        )
