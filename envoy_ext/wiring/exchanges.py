"""The exchanges' part of the composition: from configuration to what they decide with and write to.

Belongs to the composition layer, beside `app`.
"""

from collections.abc import Callable, Sequence

from envoy_ext.config import Config, Idempotency, Pool
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.answer_keeping import AnswersKept, KeepingPolicy
from envoy_ext.domain.boundaries import Boundaries, DataClass
from envoy_ext.domain.callers import CallerRules
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.admission import AdmissionRules, PoolDirectory
from envoy_ext.services.joiners import JoinPolicy
from envoy_ext.wiring.ladder import build_ladder


def build_policy(config: Config) -> ExchangePolicy:
    """The part of the configuration that the core decides with."""
    before = config.on_upstream_failure.before_first_delta
    failover = FailoverPolicy(
        replay=before.action == "retry_prefill_on_healthy_replica" and before.max_attempts > 1,
        max_attempts=before.max_attempts,
        max_replay_prompt_tokens=before.max_replay_prompt_tokens,
        max_replay_delay_s=before.max_replay_delay,
        fence_s=config.lease.ttl + config.lease.margin,
    )
    return ExchangePolicy(
        failover=failover,
        max_event_bytes=config.limits.max_sse_event_bytes,
        client_stall_s=config.limits.client_write_stall,
        lease=LeasePolicy(config.lease.ttl, config.lease.renew, config.lease.margin),
    )


def build_queue_policy(config: Config) -> QueuePolicy:
    """`admission`, as a pool's queue takes it.

    Raises:
        ConfigError: the text of an answer cannot be read.
    """
    admission = config.admission
    models = {pool.name: pool.models[0] for pool in config.pools}
    named = [
        TrafficClass(
            name=name,
            weight=one.weight,
            priority=one.priority,
            max_wait_s=admission.max_wait if one.max_wait is None else one.max_wait,
            unrecorded=one.unrecorded,
            ladder=build_ladder(one, models),
        )
        for name, one in admission.classes.items()
    ]
    return QueuePolicy(admission.queue, TrafficClasses(named, admission.max_wait))


def build_keeping(idempotency: Idempotency) -> KeepingPolicy:
    """Whose answers are kept for their repeats."""
    return KeepingPolicy(AnswersKept(idempotency.answers), idempotency.max_answer_bytes)


def build_joining(idempotency: Idempotency) -> JoinPolicy:
    """Whether repeats wait for what still runs."""
    waits = idempotency.while_running == "wait"
    return JoinPolicy(waits, idempotency.max_wait, idempotency.max_waiting)


def build_directory(pools: Sequence[Pool]) -> PoolDirectory:
    """Which pool serves which model."""
    models = {model: pool.name for pool in pools for model in pool.models}
    return PoolDirectory(models, tuple(pool.name for pool in pools))


def build_boundaries(config: Config) -> Boundaries:
    """Which pools each class of data may reach."""
    classes = [DataClass(name, frozenset(one.boundaries)) for name, one in config.data_classes.items()]
    return Boundaries(classes, {pool.name: pool.boundary for pool in config.pools})


def build_rules(config: Config, read_callers: Callable[[], CallerRules] | None = None) -> AdmissionRules:
    """What is held against every request that comes in."""
    return AdmissionRules(
        directory=build_directory(config.pools),
        boundaries=build_boundaries(config),
        max_request_bytes=config.limits.max_request_bytes,
        pass_through=tuple(config.pass_through),
        read_callers=read_callers,
    )
