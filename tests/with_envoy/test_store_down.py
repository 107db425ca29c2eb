"""A real Envoy, and a store that hangs, is killed, or is gone from its place: who goes on, who is refused."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.client_errors import NOT_RECORDABLE
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.redis_server import redis_server
from tests.with_envoy.asking import Reply, ask, asking, mint_request_id, read_deltas
from tests.with_envoy.gateway import Gateway, run_gateway

WAIT_S = 20.0
TTL_S = 2.0


@dataclass
class Ailing:
    """A gateway whose store can be broken and mended."""

    gateway: Gateway
    break_it: Callable[[], None]
    mend_it: Callable[[], None]

    async def ask(self, request_class: str = "chat", key: str | None = None, fault: str = "") -> Reply:
        headers = {"x-request-class": request_class, **({"idempotency-key": key} if key else {})}
        return await ask(self.gateway, headers=headers, fault=fault)

    @property
    def up(self) -> bool:
        return self.gateway.read_metric("envoy_ext_journal_up") == 1

    @property
    def unrecorded(self) -> float:
        return self.gateway.read_metric("envoy_ext_unrecorded_total", pool="chat")

    async def read_ready(self) -> list[str]:
        url = f"{self.gateway.stack.operations_url}/healthz/ready"
        async with self.gateway.http.get(url) as answer:
            failing: list[str] = (await answer.json())["failing"]
        return failing

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def run_ailing(how: str, directory: Path) -> AsyncIterator[Ailing]:
    common = {"timeout": "1s", "on_unavailable": "continue_unrecorded"}
    with contextlib.ExitStack() as opened:
        break_it: Callable[[], None]
        mend_it: Callable[[], Any]
        if how == "sqlite is moved away":
            journal, away = directory / "journal.db", directory / "away.db"
            place: dict[str, Any] = {"path": str(journal)}
            break_it, mend_it = (lambda: os.rename(journal, away)), (lambda: os.rename(away, journal))
        else:
            options = {"appendonly": "yes", "appendfsync": "always"}
            server = opened.enter_context(redis_server(directory / "redis", **options))
            place = {"store": "redis", "url": server.url}
            if how == "redis stands still":
                break_it = lambda: server.signal(signal.SIGSTOP)  # noqa: E731
                mend_it = lambda: server.signal(signal.SIGCONT)  # noqa: E731
                opened.callback(mend_it)
            else:
                break_it, mend_it = server.kill, server.start
        lease = {"ttl": f"{TTL_S:g}s", "renew": "500ms", "margin": "500ms"}
        classes = {"chat": {"unrecorded": True}, "batch": {}}
        async with run_gateway(
            directory, journal={**place, **common}, lease=lease, admission={"classes": classes}
        ) as gateway:
            yield Ailing(gateway, break_it, mend_it)


def assert_whole(reply: Reply, *, recorded: bool) -> None:
    assert (reply.status, reply.dones, reply.errors) == (200, 1, [])
    assert reply.headers.get("x-operation-recorded") == (None if recorded else "false")


def assert_refused(reply: Reply) -> None:
    assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")
    assert reply.headers["retry-after"].isdigit()
    assert "x-should-retry" not in reply.headers


@pytest.mark.parametrize("how", ["redis stands still", "redis is killed", "sqlite is moved away"])
async def test_while_its_store_is_down_a_gateway_runs_what_may_and_refuses_the_rest(
    how: str, tmp_path: Path
) -> None:
    async with run_ailing(how, tmp_path) as ailing:
        gateway = ailing.gateway
        before = await ailing.ask(key="before")
        assert_whole(before, recorded=True)

        under_way = mint_request_id()
        async with asking(gateway, request_id=under_way, fault="slow=20") as answer:
            await read_deltas(answer, 1)
            await asyncio.to_thread(ailing.break_it)
            down = await check_the_outage(ailing, before.headers["x-operation-id"])
            rest = await answer.content.read()
            assert rest.endswith(b"data: [DONE]\n\n"), "a stream that had begun did not go on"
            assert b'"error"' not in rest
        await asyncio.to_thread(ailing.mend_it)
        await ailing.wait_until(lambda: ailing.up and gateway.stack.app.health.holds_seat())
        await check_what_stays(ailing, [before.request_id, under_way], down)


async def check_the_outage(ailing: Ailing, recorded: str) -> list[Reply]:
    """The store is down: all that is asked now, and is not to be found later."""
    first = await ailing.ask()
    assert_whole(first, recorded=False)
    assert not ailing.up
    app = ailing.gateway.stack.app
    if app.config.journal.store != "sqlite":  # which is this gateway's alone: its seat needs no beats
        await ailing.wait_until(lambda: not app.health.holds_seat())
    asked: list[Awaitable[Reply]] = [ailing.ask(), ailing.ask(fault="#1:die_before_headers")]
    refused = [
        ailing.ask("batch"),
        ailing.ask("batch", key="k"),
        ailing.ask(key="k"),
        ailing.ask(key="before"),
    ]
    replies = await asyncio.gather(*asked, *refused)
    for reply in replies[: len(asked)]:
        assert_whole(reply, recorded=False)
    assert [reply.headers["x-attempt-count"] for reply in replies[: len(asked)]] == ["1", "2"]
    for reply in replies[len(asked) :]:
        assert_refused(reply)
    assert ailing.unrecorded == 3
    assert await ailing.read_ready() == []
    if app.config.journal.store != "sqlite":  # whose open file can be read wherever it is
        assert_refused(await ask(ailing.gateway, f"/v1/operations/{recorded}", method="GET"))
    return [first, *replies]


async def check_what_stays(ailing: Ailing, recorded: list[str], down: list[Reply]) -> None:
    """The store is back: what it missed it is told, what never began is not there, and keys are free."""
    gateway = ailing.gateway
    assert_whole(await ailing.ask(), recorded=True)
    assert_whole(await ailing.ask(key="k"), recorded=True)
    again = await ailing.ask(key="before")
    assert again.json["error"]["code"] == "operation_complete"
    for request_id in recorded:
        operation = await gateway.wait_operation(request_id)
        assert (operation["state"], operation["first_delta_sent"]) == ("completed", True)
    for reply in down:
        operation = await gateway.find_operation(reply.request_id)
        # The begin of the first one was on its way: whether the store has done it nobody knows.
        assert operation is None or operation["state"] in ("completed", "failed"), operation
        assert operation is None or reply is down[0] or not operation["attempts"], operation
    assert ailing.unrecorded == 3
    assert await ailing.read_ready() == []
    # Envoy never ran out of patience: each word came within the time of one call.
    waits = await gateway.read_envoy_stats("message_timeouts")
    assert waits, "Envoy has another name for it"
    assert set(waits.values()) == {0}


async def test_a_request_whose_begin_fails_at_the_gate_is_refused_once_and_reaches_no_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_gate, begun = asyncio.Event(), SqliteJournal.begin
    arrive = Exchanges.arrive_attempt
    failing: list[bool] = [True]

    def note_arrival(self: Exchanges, live: LiveExchange, *attempt: Any) -> None:
        at_gate.set()
        arrive(self, live, *attempt)

    async def fail(self: SqliteJournal, *asked: Any) -> Any:
        if not failing:
            return await begun(self, *asked)
        await at_gate.wait()
        raise JournalUnavailable("the disk is full")

    monkeypatch.setattr(Exchanges, "arrive_attempt", note_arrival)
    monkeypatch.setattr(SqliteJournal, "begin", fail)
    async with run_gateway(tmp_path, journal={"timeout": "3s"}) as gateway:
        reply = await ask(gateway)
        assert at_gate.is_set(), "it waited for its begin in front of the hop"
        assert_refused(reply)
        assert reply.json["error"]["message"] == NOT_RECORDABLE
        assert gateway.find_requests(reply.request_id) == []
        failing.clear()
        assert_whole(await ask(gateway), recorded=True)
        async with asyncio.timeout(WAIT_S):
            while gateway.stack.app.exchanges.inflight:
                await asyncio.sleep(0.01)
