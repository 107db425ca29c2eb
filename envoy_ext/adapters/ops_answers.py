"""The JSON that the operations port answers with: errors, replicas, pools."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

from aiohttp import web

from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import Phase
from envoy_ext.services.callers import CallersView
from envoy_ext.services.queues import QueueView

dump_json: Final[Callable[[object], str]] = partial(json.dumps, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as `/v1/replicas` shows it; None is "not known"."""

    id: ReplicaId
    pool: PoolName
    url: str
    state: str | None = None
    ready: bool | None = None
    reasons: tuple[str, ...] = ()
    """What speaks against the replica; empty when nothing is known to."""
    weight: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    sample_age_s: float | None = None
    incarnation: str | None = None
    inflight: int | None = None
    cancelling: int | None = None
    fingerprint: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """What is known of what makes its answers what they are: declared, or told by its engine."""
    contradictions: tuple[str, ...] = ()
    """Where its engine tells something else than the configuration."""
    node: str | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class DiscoveryView:
    """Where a pool's list of replicas comes from, and how that does."""

    source: str
    listed: bool
    """It has told a list; the last one stands while it fails."""
    failing: str | None = None
    """Why no newer list can be had, in a word; None while one can."""
    detail: str | None = None
    failing_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool as `/v1/pools` shows it; None is "not known"."""

    name: PoolName
    models: tuple[str, ...]
    engine: str
    boundary: str
    replicas: tuple[ReplicaId, ...]
    availability: str | None = None
    reason: str | None = None
    """Why it is as available as it is."""
    mix: tuple[str, ...] = ()
    """One line for each field in which its replicas' fingerprints are known to differ."""
    inflight: Mapping[Phase, int] | None = None
    discovery: DiscoveryView | None = None
    queue: QueueView | None = None


def build_json(status: int, value: object) -> web.Response:
    """A JSON answer."""
    return web.json_response(value, status=status, dumps=dump_json)


def build_error(status: int, code: str, message: str) -> web.Response:
    """An error in the shape that clients of OpenAI-compatible servers read; repeats nothing of a request."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return build_json(status, {"error": {"code": code, "type": kind, "message": message}})


def build_replica_json(replica: ReplicaView) -> dict[str, object]:
    """One entry of `/v1/replicas`."""
    return {
        "id": replica.id,
        "pool": replica.pool,
        "url": replica.url,
        "state": replica.state,
        "ready": replica.ready,
        "reasons": list(replica.reasons),
        "weight": replica.weight,
        "running": replica.running,
        "waiting": replica.waiting,
        "kv_cache_usage": replica.kv_cache_usage,
        "sample_age_s": replica.sample_age_s,
        "incarnation": replica.incarnation,
        "inflight": replica.inflight,
        "cancelling": replica.cancelling,
        "fingerprint": dict(replica.fingerprint),
        "contradictions": list(replica.contradictions),
        "node": replica.node,
        "zone": replica.zone,
    }


def build_pool_json(pool: PoolView) -> dict[str, object]:
    """One entry of `/v1/pools`."""
    inflight = pool.inflight
    return {
        "name": pool.name,
        "models": list(pool.models),
        "engine": pool.engine,
        "boundary": pool.boundary,
        "replicas": list(pool.replicas),
        "availability": pool.availability,
        "reason": pool.reason,
        "mix": list(pool.mix),
        "inflight": None if inflight is None else {phase.value: n for phase, n in inflight.items()},
        "queue": None if pool.queue is None else asdict(pool.queue),
        "discovery": None if pool.discovery is None else asdict(pool.discovery),
    }


def build_callers_json(view: CallersView | None) -> dict[str, object]:
    """`/v1/callers`. None: no credential is checked. No key and no hash is in it."""
    if view is None:
        return {"checked": False, "refused": [], "callers": []}
    callers = [
        {
            "name": one.name,
            "keys": len(one.digests),
            "disabled": one.disabled,
            "expires_at": one.expires_at,
            "models": _list_or_all(one.rights.models),
            "pools": _list_or_all(one.rights.pools),
            "classes": list(one.rights.classes) or None,
            "data_classes": list(one.rights.data_classes) or None,
        }
        for one in view.entries
    ]
    return {"checked": True, "refused": list(view.refused), "callers": callers}


def _list_or_all(words: frozenset[str] | frozenset[PoolName] | None) -> list[str] | None:
    """None is all."""
    return None if words is None else sorted(words)
