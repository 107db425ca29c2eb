"""A real operations port on a free port, and a client that keeps nothing between requests."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from multidict import CIMultiDictProxy
from prometheus_client import CollectorRegistry

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.ops_answers import PoolView, ReplicaView
from envoy_ext.adapters.ops_http import OpsServer
from envoy_ext.domain.capacity_report import PoolCapacity
from envoy_ext.domain.notes import Note
from envoy_ext.observability.metrics import Metrics
from envoy_ext.ports import Journal
from envoy_ext.services.health import HealthState


class Bugs:
    """An observer that keeps bugs."""

    def __init__(self) -> None:
        self.seen: list[BaseException] = []

    def note(self, note: Note) -> None:
        raise AssertionError("the port has no notes of the core")

    def note_bug(self, where: str, error: BaseException) -> None:
        self.seen.append(error)

    def note_journal(self, seconds: float, failed: bool) -> None:
        raise AssertionError("the port appends nothing")


@dataclass
class Reply:
    """One answer, read to its end."""

    status: int
    headers: CIMultiDictProxy[str]
    text: str
    json: Any


@dataclass
class OpsPort:
    """The parts a test may change, and the URL of the port that shows them."""

    journal: Journal = field(default_factory=MemoryJournal)
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry(), ["chat"]))
    health: HealthState = field(default_factory=HealthState)
    bugs: Bugs = field(default_factory=Bugs)
    replicas: Sequence[ReplicaView] = ()
    pools: Sequence[PoolView] = ()
    capacity: Sequence[PoolCapacity] = ()
    inflight: int = 0
    orders: list[tuple[str, str, float | None]] = field(default_factory=list)
    """Drains and undrains, as they were given."""
    token_file: str | None = None
    address: str = "127.0.0.1"
    port: int = 0

    def build(self) -> OpsServer:
        return OpsServer(
            journal=self.journal,
            registry=self.metrics.registry,
            health=self.health,
            observer=self.bugs,
            token_file=self.token_file,
            count_inflight=lambda: self.inflight,
            list_replicas=lambda: self.replicas,
            list_pools=lambda: self.pools,
            list_capacity=lambda: self.capacity,
            drain=lambda replica, limit_s: self._order("drain", replica, limit_s),
            undrain=lambda replica: self._order("undrain", replica, None),
        )

    def _order(self, what: str, replica: str, limit_s: float | None) -> bool:
        self.orders.append((what, replica, limit_s))
        return replica in {one.id for one in self.replicas}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["OpsPort"]:
        server = self.build()
        self.port = await server.start(self.address, 0)
        try:
            yield self
        finally:
            await server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Reply:
        url = self.url + path
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers) as response,
        ):
            is_json = response.content_type == "application/json" and method != "HEAD"
            return Reply(
                response.status,
                response.headers,
                await response.text(),
                await response.json() if is_json else None,
            )
