"""A sidecar that is started on an old journal cuts it back, and not what an earlier life had left open."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.ownership import FIRST_TOKEN
from tests.support.commands import command
from tests.support.journals import keep
from tests.support.records import begun, ended, whole_life

CONFIG = """
pools:
  - {{name: chat, models: [sim], engine: vllm, replicas: [{{id: a, url: "http://127.0.0.1:9"}}]}}
operations: {{port: 0}}
sidecar: {{socket: {directory}/s.sock}}
journal: {{path: {directory}/journal.db, retention: 2h}}
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """With room for a socket's name: its whole path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="envoy-ext-test-") as name:
        yield Path(name)


async def fill(path: Path) -> None:
    """Three operations that ended 3, 2.5 and 1 hours ago, and one that has run for a day."""
    now = time.time()
    journal = await SqliteJournal.open(path)
    await keep(journal, [begun("op_open", at=now - 86_400)])
    for operation_id, hours in (("op_3", 3.0), ("op_2", 2.5), ("op_1", 1.0)):
        first, *life, _ = whole_life(operation_id)
        await keep(journal, [replace(first, at=now - hours * 3_600), *life])
        await journal.append([ended(operation_id, at=now - hours * 3_600)], FIRST_TOKEN)
    await journal.close()


async def test_a_sidecar_forgets_what_is_older_than_it_is_told_to_keep(directory: Path) -> None:
    await fill(directory / "journal.db")
    config = directory / "config.yaml"
    config.write_text(CONFIG.format(directory=directory))
    async with command("serve", "-c", str(config)) as running, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{(await running.read_line('serves')).rpartition(' ')[2]}"

        async def read(path: str) -> str:
            async with http.get(url + path) as answer:
                return await answer.text()

        async with asyncio.timeout(20):
            while "envoy_ext_journal_operations 2.0" not in (page := await read("/metrics")):
                await asyncio.sleep(0.05)
        assert 'envoy_ext_journal_forgotten_total{why="age"} 2.0' in page
        assert "envoy_ext_journal_over_limit 0.0" in page
        listed = await read("/v1/operations")
        assert [name for name in ("op_open", "op_1", "op_2", "op_3") if f'"{name}"' in listed] == [
            "op_open",
            "op_1",
        ]
        assert await running.end(signal.SIGTERM) == 0
