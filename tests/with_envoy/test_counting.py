"""The metrics count what happened, each thing once, and end where they began."""

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from envoy_ext.operations_client import fetch_operations
from tests.with_envoy.asking import ask, asking, mint_request_id, read_deltas, wait_request
from tests.with_envoy.gateway import Gateway, run_gateway

Series = tuple[str, tuple[tuple[str, str], ...]]


async def scrape(gateway: Gateway) -> dict[Series, float]:
    """The page as Prometheus reads it."""
    url = f"{gateway.stack.operations_url}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        page = await answer.text()
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}


def read_counts(page: dict[Series, float], name: str, label: str) -> dict[str, float]:
    """A family's values above 0, by one of its labels."""
    found = {dict(labels)[label]: value for (series, labels), value in page.items() if series == name}
    return {key: value for key, value in found.items() if value}


async def leave_after_two_deltas(gateway: Gateway) -> None:
    async with asking(gateway, fault="hang_after=2", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 2)


async def test_every_exchange_attempt_and_replay_is_counted_once_by_how_it_ended(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, engine={"token_s": 0.02}) as gateway:
        for fault in ("", "", "#1:die_after_role:rst", "#1:error_first=overloaded", "error_first=validation"):
            assert (await ask(gateway, fault=fault)).status == 200
        for fault in ("die_after=5:fin", "truncate=2", "gzip_always"):
            assert (await ask(gateway, fault=fault)).status == 200
        assert (await ask(gateway, fault="die_before_headers:rst")).status == 503
        assert (await ask(gateway, fault="hang", headers={"x-request-deadline": "1"})).status == 504
        assert (await ask(gateway, data=b"{")).status == 400
        assert (await ask(gateway, "/nothing", data=b"{}")).status == 404
        await leave_after_two_deltas(gateway)
        await gateway.wait_idle()

        page = await scrape(gateway)
        assert read_counts(page, "envoy_ext_exchanges_total", "ending") == {
            "finished": 5,
            "upstream_broke": 4,
            "client_gone": 1,
            "unknown": 1,
        }
        assert read_counts(page, "envoy_ext_attempts_total", "outcome") == {
            "completed": 4,
            "client_error": 1,
            "replica_died": 4,
            "overloaded": 1,
            "truncated": 1,
            "unknown": 1,
            "cancelled": 2,
        }
        assert read_counts(page, "envoy_ext_replays_total", "reason") == {"replica_died": 2, "overloaded": 1}
        assert read_counts(page, "envoy_ext_interrupted_streams_total", "reason") == {
            "replica_died": 1,
            "truncated": 1,
        }
        assert read_counts(page, "envoy_ext_shed_total", "code") == {"invalid_request": 2}
        assert read_counts(page, "envoy_ext_inflight", "phase") == {}
        assert page["envoy_ext_bugs_total", ()] == page["envoy_ext_journal_failures_total", ()] == 0
        # Every exchange that let something out had a first delta; validation errors and losses had none.
        assert page["envoy_ext_ttft_seconds_count", ()] == 8
        assert page["envoy_ext_chunk_seconds_count", ()] > 20

        operations = await fetch_operations(gateway.stack.operations_url, 1000)
        endings = Counter(operation["ending"] for operation in operations)
        assert endings == read_counts(page, "envoy_ext_exchanges_total", "ending")


async def test_what_is_in_flight_shows_by_phase_and_is_gone_at_the_end(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "abc") as gateway:
        prefill, decode = mint_request_id(), mint_request_id()
        held = asyncio.ensure_future(ask(gateway, fault="hang_after_headers", request_id=prefill))
        async with asking(gateway, fault="hang_after=2", request_id=decode) as answer:
            await read_deltas(answer, 2)
            await wait_request(gateway, prefill)
            page = await scrape(gateway)
        held.cancel()
        await asyncio.wait((held,))
        await gateway.wait_idle()

        assert read_counts(page, "envoy_ext_inflight", "phase") == {"prefill": 1, "decode": 1}
        assert read_counts(await scrape(gateway), "envoy_ext_inflight", "phase") == {}


async def test_labels_hold_nothing_that_a_client_chose(tmp_path: Path) -> None:
    """A new model name with each request would be a new series with each request."""
    async with run_gateway(tmp_path) as gateway:
        before = await scrape(gateway)
        for number in range(30):
            reply = await ask(gateway, body={"model": f"model-{number}", "messages": []})
            assert reply.status == 404
        after = await scrape(gateway)
        new = set(after) - set(before)
        assert all(dict(labels).get("code") == "invalid_request" for _, labels in new)
        assert len(new) <= 2
