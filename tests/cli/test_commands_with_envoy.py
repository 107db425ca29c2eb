"""The commands that start an Envoy: they say what it thinks, and they leave nothing behind."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support.commands import command, list_group, run_command
from tests.with_envoy.asking import CHAT, build_body

pytestmark = pytest.mark.with_envoy


NOBODY = "http://127.0.0.1:9"


def write_config(path: Path, *urls: str, resources: str = "static", watch: bool = True) -> Path:
    """`watch`: a start waits for a replica, and for 10 s when nobody is there."""
    replicas = [{"id": f"r{number}", "url": url} for number, url in enumerate(urls)]
    settings: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"admin": {"port": 0}, "resources": resources},
        "journal": {"path": str(path.with_name("journal.db"))},
        "shutdown": {"grace": "300ms"},
        "pools": [{"name": "chat", "models": ["sim"], "engine": "vllm", "replicas": replicas}],
    }
    if not watch:
        settings["pools"][0]["readiness"] = {"watch": False}
    path.write_text(yaml.safe_dump(settings))
    return path


both = pytest.mark.parametrize("resources", ["static", "xds"])


@both
async def test_check_says_that_envoy_accepts_the_rendering(tmp_path: Path, resources: str) -> None:
    config = write_config(tmp_path / "config.yaml", NOBODY, resources=resources)
    status, output, errors = await run_command("check", "-c", str(config))
    assert (status, errors) == (0, "")
    good, survives, accepted = output.splitlines()
    assert (good, accepted) == (
        f"{config}: the configuration is good",
        f"{config}: envoy accepts the rendering",
    )
    assert survives.endswith("survives: process_death")


@both
async def test_run_serves_and_ends_both_processes_cleanly_on_sigterm(tmp_path: Path, resources: str) -> None:
    """A stream that is in flight gets its typed event through an Envoy that still runs."""
    async with (
        command("sim-engine", "--port", "0") as engine,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http,
    ):
        engine_url = (await engine.read_line("listening on")).rpartition(" ")[2]
        config = write_config(tmp_path / "config.yaml", engine_url, resources=resources)
        async with command("run", "-c", str(config)) as running:
            line = await running.read_line("clients:")
            url, operations = line.split()[1], line.split()[3]
            async with http.post(url + CHAT, json=build_body(), headers={"x-request-id": "whole"}) as whole:
                assert (await whole.read()).endswith(b"data: [DONE]\n\n")
            await assert_shown(operations, whole.headers["x-operation-id"])

            headers = {"x-request-id": "cut", "x-sim-fault": "hang_after=3"}
            async with http.post(url + CHAT, json=build_body(), headers=headers) as cut:
                await cut.content.readuntil(b".2 ")
                assert len(list_group(running.process.pid)) == 2
                status = await running.end(signal.SIGTERM)
                body = await cut.read()

            assert status == 0
            assert list_group(running.process.pid) == []
        last = json.loads(body.rstrip().rpartition(b"data: ")[2])["error"]
        assert (last["code"], last["reason"]) == ("upstream_decode_interrupted", "drain_deadline")
        assert last["delivered_output_tokens"] == 3
        assert await engine.end() == 0


async def assert_shown(operations_url: str, operation_id: str) -> None:
    """`operations` tells the journal to people and to programs."""
    listed, shown = await asyncio.gather(
        run_command("operations", "list", "--url", operations_url),
        run_command("operations", "show", operation_id, "--json", "--url", operations_url),
    )
    assert (listed[0], shown[0]) == (0, 0)
    assert operation_id in listed[1]
    operation = json.loads(shown[1])
    assert (operation["operation_id"], operation["request_id"]) == (operation_id, "whole")
    assert (operation["state"], operation["delivered_deltas"]) == ("completed", 16)


async def test_run_ends_with_a_word_when_envoy_dies(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", NOBODY, watch=False)
    async with command("run", "-c", str(config), stderr=asyncio.subprocess.PIPE) as running:
        await running.read_line("clients:")
        (envoy,) = [pid for pid in list_group(running.process.pid) if pid != running.process.pid]
        os.kill(envoy, signal.SIGKILL)
        assert await running.wait() == 1
        assert running.process.stderr is not None
        assert b"envoy ended by itself" in await running.process.stderr.read()
        assert list_group(running.process.pid) == []


@both
async def test_run_at_an_address_that_is_not_this_hosts_ends_with_envoys_reason(
    tmp_path: Path, resources: str
) -> None:
    """Over xDS Envoy is not ended by it, and has no listener then."""
    config = write_config(tmp_path / "config.yaml", NOBODY, resources=resources, watch=False)
    settings = yaml.safe_load(config.read_text())
    settings["ingress"]["address"] = "203.0.113.9"  # RFC 5737: nobody's
    config.write_text(yaml.safe_dump(settings))
    status, output, errors = await run_command("run", "-c", str(config))
    assert (status, "clients:" in output) == (1, False)
    assert "Cannot assign requested address" in errors


@pytest.mark.parametrize("key", ["ingress", "envoy.admin"])
async def test_run_does_not_share_a_port_with_another_envoy(tmp_path: Path, key: str) -> None:
    """Two Envoys of one user share a port without a word; each would get some of the clients."""
    config = write_config(tmp_path / "config.yaml", NOBODY)
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        settings = yaml.safe_load(config.read_text())
        section = settings["ingress"] if key == "ingress" else settings["envoy"]["admin"]
        section["port"] = port
        config.write_text(yaml.safe_dump(settings))
        status, output, errors = await run_command("run", "-c", str(config))
    assert (status, output) == (1, "")
    assert errors == f"{key}: cannot listen at 127.0.0.1:{port}: Address already in use\n"


async def test_run_with_an_envoy_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", NOBODY)
    status, output, errors = await run_command("run", "-c", str(config), "--envoy", "/nowhere/envoy")
    assert (status, output) == (1, "")
    assert errors == "--envoy: /nowhere/envoy is not an executable file\n"


async def test_the_demo_plays_every_failure_and_everything_comes_as_it_must() -> None:
    async with command("demo") as running:
        assert running.process.stdout is not None
        async with asyncio.timeout(100):
            output = (await running.process.stdout.read()).decode()
        assert await running.wait() == 0
        assert list_group(running.process.pid) == []
    assert "NOT SO" not in output
    assert output.rstrip().endswith("everything came as it must")
    for title in (
        "killed before headers",
        "killed after headers",
        "while its first token is on the way",
        "killed after three deltas",
        "the client leaves after two deltas",
        "the client leaves during prefill",
        "a 200 whose first event is an engine error",
        "ends without a word",
    ):
        assert title in output
    assert output.count("   client   ") == output.count("   journal  ") >= 8
