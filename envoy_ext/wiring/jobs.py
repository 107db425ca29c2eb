"""The jobs' part of the composition: what takes them in, runs them, and tells of them.

Belongs to the composition layer, beside `app`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from envoy_ext.adapters.ids import mint_operation_id
from envoy_ext.adapters.runs_client import RunsClient
from envoy_ext.config import Config
from envoy_ext.domain.answer_keeping import AnswersKept, KeepingPolicy
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.observability.metrics import Metrics
from envoy_ext.ports import Clock, Observer, Store
from envoy_ext.services.admission import Admitted, Arrival, Forbidden
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.job_ends import JobEnds
from envoy_ext.services.job_requests import JobsPolicy
from envoy_ext.services.job_runner import JobRunner
from envoy_ext.services.job_runs import Runs
from envoy_ext.services.jobs import Jobs
from envoy_ext.services.queues import Queues
from envoy_ext.services.seats import SeatKeeper
from envoy_ext.wiring.journal import build_job_bounds

SETTLE_S = 2.0
"""Behind the last words of a stop: how long the jobs that ran may take to be given back. What takes longer is
found by whoever comes next."""


@dataclass(frozen=True, slots=True)
class JobParts:
    """All that there is for jobs; nothing of it where the configuration has none."""

    jobs: Jobs
    runs: Runs
    runner: JobRunner
    sender: RunsClient

    async def stop(self) -> None:
        """Give back what ran, and close the way into Envoy. For when nothing is in flight any more."""
        await self.runner.stop(SETTLE_S)
        await self.sender.close()


def build_results(config: Config) -> KeepingPolicy | None:
    """How the results of jobs are kept; None where there are none."""
    if config.jobs is None:
        return None
    return KeepingPolicy(AnswersKept.NON_STREAMING, config.jobs.max_result_bytes, refusals=True)


def build_jobs(
    config: Config,
    *,
    store: Store,
    keeper: SeatKeeper,
    exchanges: Exchanges,
    fleet: Fleet,
    queues: Queues,
    failover: FailoverPolicy,
    admit: Callable[[Arrival], Admitted | Forbidden | ClientError],
    clock: Clock,
    observer: Observer,
    metrics: Metrics,
) -> JobParts | None:
    """Everything for jobs; None without a section `jobs`."""
    section = config.jobs
    if section is None:
        return None
    policy = JobsPolicy(
        bounds=build_job_bounds(config),
        concurrency=section.concurrency,
        max_age_s=section.max_age,
        max_request_bytes=config.limits.max_request_bytes,
    )
    runs, sender = Runs(exchanges, fleet, queues), RunsClient(config.jobs_socket)
    ends = JobEnds(
        store=store,
        exchanges=exchanges,
        failover=failover,
        classes=queues.classes,
        clock=clock,
        observer=observer,
    )
    runner = JobRunner(
        store=store,
        keeper=keeper,
        exchanges=exchanges,
        fleet=fleet,
        queues=queues,
        pools=[pool.name for pool in config.pools],
        admit=admit,
        runs=runs,
        ends=ends,
        sender=sender,
        policy=policy,
        max_attempts=failover.max_attempts,
        clock=clock,
        observer=observer,
        mint_operation_id=mint_operation_id,
        on_counts=metrics.jobs.note_counts,
    )
    jobs = Jobs(
        store=store,
        runner=runner,
        policy=policy,
        classes=queues.classes,
        draw_full=queues.draw_full,
        clock=clock,
        observer=observer,
    )
    return JobParts(jobs, runs, runner, sender)
