"""The operations port over real HTTP: health, metrics, replicas and pools, and how it says no."""

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from envoy_ext.adapters import ops_http
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.ops_answers import DiscoveryView, PoolView, ReplicaView
from envoy_ext.domain.ids import OperationId, PoolName, ReplicaId
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import Phase
from envoy_ext.services.queues import QueueView
from tests.support.ops_port import OpsPort

PATHS = [
    "/",
    "/healthz/startup",
    "/healthz/live",
    "/healthz/ready",
    "/metrics",
    "/v1/operations",
    "/v1/pools",
    "/v1/replicas",
    "/v1/capacity",
]


# --- health ---------------------------------------------------------------------------------


async def test_the_three_health_questions_have_answers_of_their_own_over_a_life(ops: OpsPort) -> None:
    async def statuses() -> list[int]:
        return [(await ops.ask(f"/healthz/{name}")).status for name in ("startup", "live", "ready")]

    assert await statuses() == [503, 200, 503]
    ops.health.started = True
    assert await statuses() == [200, 200, 200]
    ops.health.draining = True
    assert await statuses() == [200, 200, 503]
    ops.health.fatal = "out of file descriptors"
    assert await statuses() == [200, 503, 503]


async def test_a_health_answer_names_what_fails(ops: OpsPort) -> None:
    ops.inflight = 3
    assert (await ops.ask("/healthz/startup")).json == {
        "status": "failing",
        "failing": ["starting"],
        "inflight": 3,
    }
    ops.health.started = True
    ready = (await ops.ask("/healthz/ready")).json
    assert ready == {"status": "ok", "failing": [], "inflight": 3, "survives": []}, "what the store survives"
    ops.health.draining = True
    ops.health.note_journal(2.0, failed=True)
    assert (await ops.ask("/healthz/ready")).json["failing"] == ["draining", "journal"]
    ops.health.fatal = "out of file descriptors"
    live = (await ops.ask("/healthz/live")).json
    assert (live["failing"], live["fatal"]) == (["fatal"], "out of file descriptors")


async def test_a_journal_that_is_closed_makes_it_unready_and_not_dead(ops: OpsPort) -> None:
    ops.health.started = True
    await ops.journal.close()
    ready = await ops.ask("/healthz/ready")
    assert (ready.status, ready.json["failing"]) == (503, ["journal"])
    assert (await ops.ask("/healthz/live")).status == 200


class HangingJournal(MemoryJournal):
    """A disk that does not answer."""

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_journal_that_hangs_makes_it_unready_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_http, "JOURNAL_PROBE_S", 0.01)
    async with OpsPort(journal=HangingJournal()).serving() as ops:
        ops.health.started = True
        ready = await ops.ask("/healthz/ready")
    assert (ready.status, ready.json["failing"]) == (503, ["journal"])


# --- metrics --------------------------------------------------------------------------------


async def test_the_metrics_page_is_prometheus_text_that_its_parser_reads(ops: OpsPort) -> None:
    ops.metrics.admission.note_refusal("chat", "draining")
    page = await ops.ask("/metrics")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, sample.labels.get("code")): sample.value
        for family in parse_prometheus(page.text)
        for sample in family.samples
    }
    assert samples["envoy_ext_shed_total", "draining"] == 1
    assert not any(name.endswith("_created") for name, _ in samples)


async def test_a_scraper_that_asks_for_openmetrics_is_given_it(ops: OpsPort) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    page = await ops.ask("/metrics", headers={"Accept": accept})
    assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "envoy_ext_inflight" in {family.name for family in parse_openmetrics(page.text)}


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=new",
        "text/plain;version=;;",
        "*/*",
        ";;,,",
        "text/plain;version=9" * 9,
    ],
)
async def test_an_accept_header_that_says_nothing_useful_still_gets_a_page(ops: OpsPort, accept: str) -> None:
    page = await ops.ask("/metrics", headers={"Accept": accept})
    assert page.status == 200
    assert "envoy_ext_inflight" in page.text
    assert ops.bugs.seen == []


# --- replicas and pools ---------------------------------------------------------------------


async def test_what_is_not_known_of_a_replica_is_null_and_never_zero(ops: OpsPort) -> None:
    ops.replicas = [ReplicaView(ReplicaId("a"), PoolName("chat"), "http://10.0.0.11:8000")]
    assert (await ops.ask("/v1/replicas")).json == {
        "replicas": [
            {
                "id": "a",
                "pool": "chat",
                "url": "http://10.0.0.11:8000",
                "state": None,
                "ready": None,
                "reasons": [],
                "weight": None,
                "running": None,
                "waiting": None,
                "kv_cache_usage": None,
                "sample_age_s": None,
                "incarnation": None,
                "inflight": None,
                "cancelling": None,
                "fingerprint": {},
                "contradictions": [],
                "node": None,
                "zone": None,
            }
        ]
    }


async def test_pools_show_their_configuration_and_what_is_in_flight(ops: OpsPort) -> None:
    known = PoolView(
        PoolName("chat"),
        ("llama-3.1-8b",),
        "vllm",
        "local",
        (ReplicaId("a"), ReplicaId("b")),
        "normal",
        "ready",
        ("weights: rev-1 on a; rev-2 on b",),
        {Phase.QUEUED: 0, Phase.PREFILL: 1, Phase.DECODE: 2},
        DiscoveryView("kubernetes", True, "forbidden", "list and watch are missing", 3.5),
        QueueView(3, 256, 17, {"default": 1, "batch": 2}, slots=8, free=0, drain_per_s=1.5),
    )
    ops.pools = [known, PoolView(PoolName("embed"), ("bge",), "generic", "site", ())]
    chat, embed = (await ops.ask("/v1/pools")).json["pools"]
    assert chat == {
        "name": "chat",
        "models": ["llama-3.1-8b"],
        "engine": "vllm",
        "boundary": "local",
        "replicas": ["a", "b"],
        "availability": "normal",
        "reason": "ready",
        "mix": ["weights: rev-1 on a; rev-2 on b"],
        "inflight": {"queued": 0, "prefill": 1, "decode": 2},
        "queue": {
            "waiting": 3,
            "length": 256,
            "deepest": 17,
            "classes": {"default": 1, "batch": 2},
            "slots": 8,
            "free": 0,
            "drain_per_s": 1.5,
        },
        "discovery": {
            "source": "kubernetes",
            "listed": True,
            "failing": "forbidden",
            "detail": "list and watch are missing",
            "failing_for_s": 3.5,
        },
    }
    assert (embed["inflight"], embed["availability"], embed["reason"]) == (None, None, None)
    assert (embed["mix"], embed["queue"]) == ([], None)


# --- how it says no -------------------------------------------------------------------------


def error_of(reply_json: dict[str, dict[str, str]]) -> tuple[str, str]:
    assert set(reply_json) == {"error"}
    assert set(reply_json["error"]) == {"code", "type", "message"}
    return reply_json["error"]["code"], reply_json["error"]["type"]


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/healthz", "/v1/operations/op_1/more", "/metrics/", "//"]
)
async def test_an_unknown_path_is_a_404_in_json_that_does_not_repeat_it(ops: OpsPort, path: str) -> None:
    reply = await ops.ask(path)
    assert reply.status == 404
    assert error_of(reply.json) == ("not_found", "invalid_request_error")
    assert path not in reply.json["error"]["message"].replace("GET / lists", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_a_wrong_method_is_a_405_that_says_which_are_right(ops: OpsPort, method: str) -> None:
    reply = await ops.ask("/v1/operations", method=method)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET,HEAD"
    assert error_of(reply.json) == ("method_not_allowed", "invalid_request_error")


@pytest.mark.parametrize("path", PATHS)
async def test_head_is_answered_like_get_without_the_body(ops: OpsPort, path: str) -> None:
    ops.health.started = True
    got, head = await ops.ask(path), await ops.ask(path, method="HEAD")
    assert (got.status, head.status, head.text) == (200, 200, "")
    assert head.headers["content-type"] == got.headers["content-type"]


async def test_the_index_lists_every_path_there_is(ops: OpsPort) -> None:
    reply = await ops.ask("/")
    assert reply.headers["content-type"].startswith("text/plain")
    assert all(f"GET {path} " in reply.text for path in PATHS[1:])


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/v1/operations/op_1"])
async def test_no_answer_names_a_version_or_may_be_cached(ops: OpsPort, path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        headers = (await ops.ask(path, method=method)).headers
        assert headers["server"] == "envoy-ext"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


class BrokenReplicas(list[ReplicaView]):
    """A list that cannot be read."""

    def __iter__(self) -> Iterator[ReplicaView]:
        raise KeyError("secret detail")


async def test_a_bug_in_an_answer_is_a_500_that_tells_the_caller_nothing_and_the_observer_everything() -> (
    None
):
    async with OpsPort(replicas=BrokenReplicas()).serving() as ops:
        reply = await ops.ask("/v1/replicas")
        assert reply.status == 500
        assert error_of(reply.json) == ("internal_error", "server_error")
        assert "secret detail" not in reply.text
        assert [type(error) for error in ops.bugs.seen] == [KeyError]
        assert (await ops.ask("/v1/pools")).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"BREW /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nsecret-word\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_a_head_that_cannot_be_read_is_an_error_in_json_that_repeats_nothing(
    ops: OpsPort, head: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ops.port)
    writer.write(head)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    lines, _, body = answer.partition(b"\r\n\r\n")
    assert lines.split(b" ")[1] == b"400"
    assert b"Server: envoy-ext" in lines
    assert error_of(json.loads(body)) == ("invalid_request", "invalid_request_error")
    assert not any(word in answer for word in (b"aiohttp", b"Python", b"BREW", b"secret-word", b"xxx"))
    assert ops.bugs.seen == []


# --- its socket -----------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_an_os_error_and_leaves_nothing_behind() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = OpsPort().build()
        with pytest.raises(OSError, match="address already in use"):
            await server.start("127.0.0.1", taken.getsockname()[1])
        await server.stop()


async def test_after_stop_nobody_listens_and_stopping_again_is_nothing() -> None:
    ops = OpsPort()
    server = ops.build()
    port = await server.start("127.0.0.1", 0)
    # A client that keeps its connection open must not keep the port open.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await server.stop()
    await server.stop()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
