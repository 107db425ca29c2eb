"""`envoy-ext capacity`: from a running sidecar, from a figure that somebody gives, or from the file alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from envoy_ext.adapters.ops_capacity import build_capacity_json, build_cost_json
from envoy_ext.cli.columns import find_mapping
from envoy_ext.config import Config, Operations, Pool
from envoy_ext.domain.capacity import Demand
from envoy_ext.domain.capacity_report import CapacityPolicy
from envoy_ext.domain.downtime_cost import ReplicaSize, SpareComparison, compare_spare
from envoy_ext.domain.errors import ConfigError
from envoy_ext.operations_client import OperationsUnavailable, fetch_capacity
from envoy_ext.wiring.capacity import build_capacity_policy, plan_capacity

Json = dict[str, Any]

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Who listens everywhere is asked here."""


def parse_requests(given: Sequence[str], pools: Sequence[Pool]) -> dict[str, float]:
    """`POOL=N`, or `N` alone where there is one pool.

    Raises:
        ConfigError: one line for each that says nothing.
    """
    names = [pool.name for pool in pools]
    found: dict[str, float] = {}
    mistakes = []
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals:
            name = names[0] if len(names) == 1 else ""
        if not (number.isascii() and number.isdigit() and len(number) <= 9):
            mistakes.append(f"--requests {text}: write a whole number of requests, such as {names[0]}=60")
        elif name not in names:
            mistakes.append(f"--requests {text}: write POOL=N with one of these pools: {', '.join(names)}")
        elif name in found:
            mistakes.append(f"--requests {text}: the pool has a figure already")
        else:
            found[name] = float(number)
    if mistakes:
        raise ConfigError(mistakes)
    return found


def find_operations_url(operations: Operations) -> str | None:
    """Where the configured sidecar is asked; None when its port is chosen at its start."""
    if operations.port == 0:
        return None
    host = _LOOPBACK.get(operations.address, operations.address)
    return f"http://[{host}]:{operations.port}" if ":" in host else f"http://{host}:{operations.port}"


def plan_report(config: Config, requests: Mapping[str, float], note: str) -> Json:
    """What the file alone tells, for the figures given."""
    pools = [build_capacity_json(plan_capacity(pool, requests.get(pool.name))) for pool in config.pools]
    return {"asked": None, "note": note, "pools": pools}


async def ask_report(config: Config, url: str | None) -> Json:
    """What the sidecar has measured; where none can be asked, what the file alone tells.

    Raises:
        ConfigError: a sidecar was named, and cannot be asked.
    """
    place = url or find_operations_url(config.operations)
    if place is None:
        return plan_report(config, {}, _say_unknown("operations.port is 0: name the sidecar with --url"))
    try:
        pools = await fetch_capacity(place)
    except OperationsUnavailable as error:
        if url is not None:
            raise ConfigError([f"--url {error}"]) from error
        return plan_report(config, {}, _say_unknown(str(error)))
    return {
        "asked": place,
        "note": f"load as the sidecar at {place} has measured it",
        "pools": _merge(config, pools),
    }


def _say_unknown(why: str) -> str:
    return f"the load is not known ({why}): what follows is the file's; give a load with --requests"


def _merge(config: Config, measured: list[Json]) -> list[Json]:
    """The sidecar's pools, those that only the file has, and the cost figures of the file, not its own."""
    known = {pool.get("pool") for pool in measured}
    configured = {pool.name: pool for pool in config.pools}
    for found in measured:
        pool = configured.get(found.get("pool", ""))
        if pool is not None and pool.capacity.cost is not None:
            policy = build_capacity_policy(pool)
            cost = _compare(found, policy)
            found["cost"] = None if cost is None else build_cost_json(cost, policy.currency)
    missing = [
        build_capacity_json(plan_capacity(pool, None)) for pool in config.pools if pool.name not in known
    ]
    for pool_json in missing:
        pool_json["remarks"] = ["the sidecar does not have this pool: was it started with another file?"]
    return [*measured, *missing]


def _compare(found: Json, policy: CapacityPolicy) -> SpareComparison | None:
    """The figures of the file with the work that the sidecar has measured."""
    busiest, replicas = found.get("busiest"), found.get("replicas")
    if policy.figures is None or not busiest or not replicas:
        return None
    able = len(replicas) - len(found["unable"])
    concurrency = found["room"] / able if able else policy.size.concurrency
    size = ReplicaSize(concurrency, policy.size.kv_limit)
    return compare_spare(
        policy.figures, len(replicas), Demand(busiest["requests"], busiest["kv_cache"]), size
    )


def read_status(report: Json) -> int:
    """The command's exit status: 1 when a pool does not hold the loss of a replica."""
    return int(any(find_mapping(pool, "n_plus_one").get("holds") is False for pool in report["pools"]))
