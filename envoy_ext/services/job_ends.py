"""What becomes of a job after its run: ended, or given back into the queue. Decided by `domain.job_run`.

The run may have been this gateway's, or that of one that is gone. Nothing is given back while an attempt of
it may still act, and nothing is ended before the journal has the end of the run.
"""

import asyncio
from typing import Final, assert_never

from envoy_ext.domain.errors import JournalUnavailable, NotOwner, RunNotOver
from envoy_ext.domain.job import Job, JobEnd
from envoy_ext.domain.job_run import AfterRun, AwaitRun, Finish, RunAgain, decide_after_run
from envoy_ext.domain.notes import JobEnded
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import Ending
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.tool_verdict import find_obstacle
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.ports import Clock, Observer, Store
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.job_requests import had_side_effects
from envoy_ext.services.recovery import end_left_over

LOOK_AGAIN_S: Final = 0.2
"""Until the journal is asked again for the end of a run, or the store for anything."""


class JobEnds:
    """Used by the runner, one call for one job at a time."""

    def __init__(
        self,
        *,
        store: Store,
        exchanges: Exchanges,
        failover: FailoverPolicy,
        classes: TrafficClasses,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._store = store
        self._exchanges = exchanges
        self._failover = failover
        self._classes = classes
        self._clock = clock
        self._observer = observer

    async def settle(self, job: Job) -> Job | None:
        """End a job of this gateway's whose run is over, or give it back; however long that takes.

        The job as it is from then on; None when it is another gateway's by now.
        """
        while True:
            try:
                settled = await self._try(job)
                if settled is not None:
                    return settled
            except NotOwner:
                return None
            except (JournalUnavailable, RunNotOver):
                pass  # the next look tells more
            await asyncio.sleep(LOOK_AGAIN_S)

    async def finish(self, job: Job, end: JobEnd) -> Job:
        """End a job. The first end stays; it is noted by whoever gave it.

        Raises:
            NotOwner: it has another token by now.
            JournalUnavailable: nothing is known.
        """
        ended = await self._store.finish_job(job.job_id, job.token, end)
        if ended.end == end:
            self.note_end(ended)
        return ended

    def note_end(self, job: Job) -> None:
        """A job has ended by a word of this gateway."""
        assert job.end is not None
        self._observer.note(
            JobEnded(job.job_id, job.request_id, job.pool, job.state, job.end.error_code, len(job.run_ids))
        )

    # --- inside -------------------------------------------------------------------------------

    async def _try(self, job: Job) -> Job | None:
        """One look; None when it is too early to tell."""
        at_store = await self._store.read_job(job.job_id)
        if at_store is None or at_store.token != job.token:
            return at_store if at_store is not None and at_store.ended else _refuse(job)
        if at_store.ended:
            return at_store
        decision = await self._decide(at_store)
        match decision:
            case Finish():
                return await self.finish(at_store, decision.end)
            case RunAgain():
                left_s = decision.not_before - self._clock.wall()
                if left_s > 0:
                    await asyncio.sleep(left_s)
                    return None  # a tool call may have come to its end meanwhile: decided anew
                released = await self._store.release_job(job.job_id, job.token, self._clock.wall())
                if released.ended:
                    self.note_end(released)
                return released
            case AwaitRun():
                await self._end_left_over(decision.operation)
                return None
            case _:
                assert_never(decision)

    async def _decide(self, job: Job) -> AfterRun:
        found = [await self._store.get(run_id) for run_id in job.run_ids]
        runs = [one for one in found if one is not None]
        newest = next((one for one in runs if one.operation_id == job.run_id), None)
        answered = newest is not None and newest.ending is Ending.FINISHED
        kept = answered and await self._store.read_answer(runs[-1].operation_id) is not None
        obstacle = find_obstacle(await self._store.read_calls(job.ledger_id))
        return decide_after_run(
            job,
            runs,
            kept,
            obstacle,
            self._failover,
            self._clock.wall(),
            side_effects=await self._has_side_effects(job),
        )

    async def _has_side_effects(self, job: Job) -> bool:
        """Whether its class acts on the world, or did when the job was taken in."""
        if self._classes.find(job.request_class).ladder.side_effects:
            return True
        request = await self._store.read_job_request(job.job_id)
        return request is not None and had_side_effects(request)

    async def _end_left_over(self, operation: Operation) -> None:
        """The end of a run of this gateway's that the store has not taken; another's is recovery's."""
        await self._exchanges.record_owed_ends()
        if self._exchanges.is_left_over(operation):
            await end_left_over(self._store, operation, self._clock.wall())


def _refuse(job: Job) -> Job:
    raise NotOwner(f"{job.job_id} belongs to another gateway")
