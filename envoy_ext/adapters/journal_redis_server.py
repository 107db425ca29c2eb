"""What a Redis server says of itself, and what may be promised of a journal there.

https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/ and
https://redis.io/docs/latest/commands/wait/ say what the settings mean.
"""

from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions
from redis.asyncio import Redis

PROCESS_DEATH: Final = "process_death"
POWER_LOSS: Final = "power_loss"
STORE_FAILOVER: Final = "store_failover"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """None: it does not say, or does not let this user ask."""

    version: str | None = None
    append_only: bool | None = None
    appendfsync: str | None = None
    eviction: str | None = None
    """`maxmemory-policy`."""
    replicas: int | None = None
    """Connected to it now."""
    pauses_fsync: str | None = None
    """`no-appendfsync-on-rewrite`: with `yes` there is no fsync while a child of the server writes, also with
    `appendfsync always`."""


async def read_facts(client: Redis) -> ServerFacts:
    """Ask the server about itself; what it will not tell is None."""
    server, persistence = await _read_info(client, "server"), await _read_info(client, "persistence")
    memory, replication = await _read_info(client, "memory"), await _read_info(client, "replication")
    append_only, replicas = persistence.get("aof_enabled"), replication.get("connected_slaves")
    return ServerFacts(
        version=_read_text(server.get("redis_version")),
        append_only=None if append_only is None else bool(append_only),
        appendfsync=await _read_setting(client, "appendfsync"),
        eviction=_read_text(memory.get("maxmemory_policy"))
        or await _read_setting(client, "maxmemory-policy"),
        replicas=replicas if isinstance(replicas, int) else None,
        pauses_fsync=await _read_setting(client, "no-appendfsync-on-rewrite"),
    )


async def _read_info(client: Redis, section: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = await client.info(section)
    except exceptions.ResponseError:
        return {}
    return told


async def _read_setting(client: Redis, name: str) -> str | None:
    try:
        told = await client.config_get(name)
    except exceptions.ResponseError:
        return None
    return _read_text(told.get(name))


def _read_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def derive_guarantees(facts: ServerFacts, wait_replicas: int) -> frozenset[str]:
    """What acknowledged records survive, as far as the server's own words and the configuration carry it.

    `store_failover` is for a failover to a replica: each of those that could follow must have confirmed, and
    a server that knows of more than are waited for could be followed by one that has not.
    """
    kept = {PROCESS_DEATH}
    if facts.append_only and facts.appendfsync == "always" and facts.pauses_fsync == "no":
        kept.add(POWER_LOSS)
    if wait_replicas >= 1 and (facts.replicas is None or facts.replicas <= wait_replicas):
        kept.add(STORE_FAILOVER)
    return frozenset(kept)


def find_eviction(facts: ServerFacts) -> str | None:
    """Why nothing may be kept at this server, and the mend; None where it does not drop what it has."""
    if facts.eviction in (None, "noeviction"):
        return None
    return (
        f"its maxmemory-policy is {facts.eviction}, by which a full memory drops records: "
        "set maxmemory-policy to noeviction"
    )


def list_doubts(facts: ServerFacts, wait_replicas: int) -> tuple[str, ...]:
    """What people should know of a server that is used all the same."""
    doubts = []
    if facts.eviction is None:
        doubts.append(
            "the server does not tell its maxmemory-policy: it must be noeviction, or a full memory drops "
            "records"
        )
    if facts.append_only is None or (facts.append_only and facts.appendfsync is None):
        doubts.append("the server does not tell how it writes to its disk: power_loss is not promised")
    if facts.append_only and facts.appendfsync == "always" and facts.pauses_fsync == "yes":
        doubts.append(
            "the server makes no fsync while it rewrites its files (no-appendfsync-on-rewrite yes): "
            "power_loss is not promised"
        )
    if wait_replicas and facts.replicas is not None and facts.replicas > wait_replicas:
        doubts.append(
            f"the server has {facts.replicas} replicas and {wait_replicas} are waited for: one without the "
            "last records could follow it, so store_failover is not promised"
        )
    if wait_replicas and facts.append_only is False:
        doubts.append(
            "the server writes nothing to its disk (appendonly no): if it restarts before another follows, "
            "it is empty, and so are its replicas then"
        )
    if facts.replicas is not None and facts.replicas < wait_replicas:
        doubts.append(
            f"the server has {facts.replicas} replicas and {wait_replicas} are waited for: no write counts "
            "until it has them"
        )
    return tuple(doubts)
