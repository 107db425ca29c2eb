"""What the gateway says of itself: its line while the crowd is there, and what is left behind it."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.load.gateway import GatewayProcess
from envoy_ext.adapters.journal_sqlite import SqliteJournal

EVERY_S: Final = 0.05
ENVOY: Final = "envoy: "
SETTLE_S: Final = 20.0
"""How long the last cancelled slots may take to be known free, and Envoy to close what was left."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one moment."""

    at: float
    waiting: int
    classes: Mapping[str, int]
    free: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal says of a request that was begun, on the monotonic clock."""

    name: str
    created_at: float
    started_at: float | None
    """Of its first attempt: it had its slot by then."""


async def read_journal(path: Path) -> list[Entry]:
    """All operations of a gateway that has stopped."""
    ahead_s = time.time() - time.monotonic()
    journal = await SqliteJournal.open(str(path))
    try:
        operations = await journal.list_recent(1_000_000)
    finally:
        await journal.close()
    found = []
    for one in operations:
        started = one.attempts[0].started_at if one.attempts else None
        at = None if started is None else started - ahead_s
        found.append(Entry(one.request_id, one.created_at - ahead_s, at))
    return found


async def watch_line(operations_url: str, found: list[Sample]) -> None:
    """Look at the line at fine intervals, until cancelled."""
    async with aiohttp.ClientSession() as http:
        while True:
            queue = (await _fetch_pool(http, operations_url))["queue"]
            found.append(Sample(time.monotonic(), queue["waiting"], queue["classes"], queue["free"]))
            await asyncio.sleep(EVERY_S)


async def read_deepest(operations_url: str) -> int:
    """The deepest that the line ever was, by the sidecar's own account."""
    async with aiohttp.ClientSession() as http:
        deepest: int = (await _fetch_pool(http, operations_url))["queue"]["deepest"]
    return deepest


async def read_counts(gateway: GatewayProcess) -> dict[str, float]:
    """Everything that counts something that is there at this moment."""
    counts: dict[str, float] = {}
    async with aiohttp.ClientSession() as http:
        pool = await _fetch_pool(http, gateway.operations_url)
        counts["line: waiting"] = pool["queue"]["waiting"]
        counts["slots: taken"] = pool["queue"]["slots"] - pool["queue"]["free"]
        async with http.get(f"{gateway.operations_url}/v1/replicas") as answer:
            for one in (await answer.json())["replicas"]:
                for name in ("inflight", "cancelling", "running", "waiting"):
                    counts[f"replica {one['id']}: {name}"] = one[name] or 0
        async with http.get(f"{gateway.operations_url}/healthz/live") as answer:
            counts["exchanges in flight"] = (await answer.json())["inflight"]
    for metric in (
        "envoy_ext_inflight",
        "envoy_ext_queue_depth",
        "envoy_ext_repeats_waiting",
        "envoy_ext_background_tasks",
        "envoy_ext_bugs_total",
        "envoy_ext_journal_failures_total",
    ):
        for labels, value in (await gateway.fetch_metrics(metric)).items():
            counts[f"{metric} {labels}".strip()] = value
    faults = await gateway.fetch_envoy_stats("logs_dropped|spurious_msgs_received|message_timeouts")
    counts |= {f"Envoy counts {name}": value for name, value in faults.items()}
    stats = await gateway.fetch_envoy_stats("active")
    counts |= {f"{ENVOY}{name}": value for name, value in stats.items() if _is_request_gauge(name)}
    return counts


def _is_request_gauge(name: str) -> bool:
    gauges = ("downstream_rq_active", "upstream_rq_active", "upstream_rq_pending_active")
    return name.endswith(gauges) and not name.startswith("http.admin.")


async def wait_counts(gateway: GatewayProcess, before: Mapping[str, float]) -> dict[str, float]:
    """What is not 0 once nothing more goes away.

    Of Envoy's own streams to the sidecar some last for as long as both do (xDS, access log): what it had
    before the crowd came is none of it.
    """
    until = time.monotonic() + SETTLE_S
    while True:
        after = await read_counts(gateway)
        left = {
            name: count
            for name, count in after.items()
            if count != (before.get(name, 0.0) if name.startswith(ENVOY) else 0.0)
        }
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(0.2)


async def _fetch_pool(http: aiohttp.ClientSession, operations_url: str) -> dict[str, Any]:
    async with http.get(f"{operations_url}/v1/pools") as answer:
        pool: dict[str, Any] = (await answer.json())["pools"][0]
    return pool


def read_cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
