"""What a request says and what it is sent with stays out of everything that is kept or shown."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

from envoy_ext.observability.logs import configure_logging
from tests.with_envoy.asking import Reply, ask, build_body
from tests.with_envoy.gateway import Gateway, run_gateway

PROMPT = "xyzzy-prompt-marker"
API_KEY = "xyzzy-api-key-marker"
KEY_HASH = sha256(API_KEY.encode()).hexdigest()
IDEMPOTENCY_KEY = "xyzzy-idempotency-marker"
MARKERS = (PROMPT, API_KEY, IDEMPOTENCY_KEY, KEY_HASH)
KEY = {"authorization": f"Bearer {API_KEY}"}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that the sidecar and its libraries log, as it would be written."""
    root = logging.getLogger()
    before = root.level, logging.getLogger("envoy_ext").level
    stream = io.StringIO()
    writer = configure_logging("debug", stream)
    yield stream
    writer.close()
    root.removeHandler(writer)
    root.setLevel(before[0])
    logging.getLogger("envoy_ext").setLevel(before[1])


async def ask_with_secrets(gateway: Gateway, number: int, fault: str, **more: str) -> Reply:
    body = build_body(messages=[{"role": "user", "content": PROMPT}], user=PROMPT, **more)
    headers = {**KEY, "idempotency-key": f"{IDEMPOTENCY_KEY}-{number}"}
    return await ask(gateway, body=body, headers=headers, fault=fault)


async def read_everything_shown(gateway: Gateway) -> str:
    """What the operations port and Envoy's admin port tell."""
    operations, admin = gateway.stack.operations_url, gateway.stack.envoy.admin_url
    shown = []
    async with aiohttp.ClientSession() as http:
        for url in (
            f"{operations}/metrics",
            f"{operations}/v1/operations?limit=1000",
            f"{operations}/healthz/ready",
            f"{operations}/v1/replicas",
            f"{operations}/v1/callers",
            f"{admin}/stats",
        ):
            async with http.get(url) as answer:
                assert answer.status == 200
                shown.append(await answer.text())
    return "\n".join(shown)


async def test_prompts_answers_and_credentials_are_in_no_log_no_journal_and_no_metric(
    tmp_path: Path, log: io.StringIO
) -> None:
    faults = [
        "",
        "#1:die_after_role:rst",
        "die_after=3:fin",
        "die_before_headers:rst",
        "error_first=validation",
        "error_after=2;engine",
        "truncate=2",
        "gzip_always",
        "status=400",
    ]
    callers = tmp_path / "etc" / "callers.yaml"
    callers.parent.mkdir()
    callers.write_text(f"callers: [{{name: team, sha256: {KEY_HASH}}}]")
    async with run_gateway(tmp_path, callers={"keys_file": str(callers)}) as gateway:
        replies = [await ask_with_secrets(gateway, number, fault) for number, fault in enumerate(faults)]
        again = await ask_with_secrets(gateway, 2, "")
        reused = await ask_with_secrets(gateway, 0, "", stop=PROMPT)
        unknown = await ask_with_secrets(gateway, 99, "", model=PROMPT)
        unreadable = await ask(gateway, data=b'{"model": "' + PROMPT.encode(), headers=KEY)
        stranger = await ask(gateway, headers={"x-api-key": API_KEY[:-1] + "x", **KEY})
        callers.write_text(f"callers: [{{name: {PROMPT}, sha256: {KEY_HASH}, api_key: {API_KEY}}}]")
        async with asyncio.timeout(20):
            while gateway.read_metric("envoy_ext_callers_file_in_force"):
                await asyncio.sleep(0.05)
        await gateway.wait_idle()
        shown = await read_everything_shown(gateway)
        envoy_log = gateway.stack.envoy.log_path.read_text()

        told = [reply.status for reply in (again, reused, unknown, unreadable, stranger)]
        assert told == [409, 422, 404, 400, 401]
        answered = next(mark for reply in replies if reply.status == 200 for mark in reply.marks)
        answer_text = f"{answered.replica}.{answered.generation}.0 "
        for reply in (again, reused, unknown, unreadable, stranger, replies[3]):
            for marker in (*MARKERS, answer_text):
                assert marker not in reply.body.decode()
                assert marker not in str(reply.headers)

    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert "journal.db" in kept
    logged = log.getvalue()
    lines = [json.loads(line) for line in logged.splitlines()]
    assert sum(line["event"] == "exchange_ended" for line in lines) == len(faults)
    for marker in (*MARKERS, answer_text):
        for name, data in kept.items():
            assert marker.encode() not in data, f"{marker} is in {name}"
        for place, text in (("the log", logged), ("what is shown", shown), ("envoy's log", envoy_log)):
            assert marker not in text, f"{marker} is in {place}"
