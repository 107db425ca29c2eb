"""From a configuration to the store that is opened: where it is, who logs in, and what is said of it."""

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from envoy_ext.adapters.journal_redis_way import Login, RedisPlace
from envoy_ext.config import Journal, load_config, parse_config
from envoy_ext.domain.errors import ConfigError
from envoy_ext.operations_client import fetch_operations
from envoy_ext.wiring.journal import LOST_JOBS, build_place, describe_journal, open_journal, show_place
from tests.support.commands import command, run_command
from tests.support.redis_server import RedisServer, redis_server

GOOD = Path(__file__).parents[1] / "config" / "good"
SECRET = "s3cret-pa55"
POOLS = "pools: [{name: chat, models: [m], replicas: [{url: 'http://127.0.0.1:9'}]}]\n"


def load(name: str) -> Journal:
    return load_config(GOOD / f"{name}.yaml").journal


def journal_of(**keys: object) -> Journal:
    pool = {"name": "chat", "models": ["m"], "replicas": [{"url": "http://127.0.0.1:9"}]}
    return parse_config({"pools": [pool], "journal": {"store": "redis", **keys}}, "test").journal


def test_a_server_its_files_and_its_database() -> None:
    journal = load("journal_redis")
    assert (journal.prefix, journal.wait_replicas, journal.wait_timeout) == ("edge/eu", 2, 0.5)
    assert build_place(journal, with_logins=False) == RedisPlace(
        nodes=(("redis.example", 6379),),
        db=3,
        tls=True,
        ca_file="/ca.pem",
        cert_file="/c.pem",
        key_file="/k.pem",
    )
    assert show_place(journal) == "rediss://redis.example:6379/3"


def test_sentinels_and_the_service_that_they_know() -> None:
    journal = load("journal_redis_sentinel")
    place = build_place(journal, with_logins=False)
    assert place.nodes == (("10.0.0.4", 26379), ("2001:db8::5", 26379), ("sentinel-3", 26379))
    assert (place.service, place.db, place.tls, place.cluster) == ("main", 1, True, False)
    shown = "the master of main (sentinels 10.0.0.4:26379, [2001:db8::5]:26379, sentinel-3:26379)"
    assert show_place(journal) == shown


def test_a_node_of_a_cluster_and_a_password_in_its_url() -> None:
    journal = load("journal_redis_cluster")
    place = build_place(journal)
    assert (place.nodes, place.cluster, place.tls) == ((("node-1", 7000),), True, False)
    assert dataclasses.astuple(place.login) == ("me", "pa/55")
    assert "55" not in repr(place)
    assert "55" not in repr(journal)
    assert show_place(journal) == "redis://node-1:7000"


def test_a_socket() -> None:
    place = build_place(load("journal_redis_socket"))
    assert (place.socket, place.db, place.nodes, place.login) == ("/run/redis.sock", 2, (), Login())
    assert place.shown == "unix:///run/redis.sock?db=2"


def test_passwords_come_from_files_without_the_lines_end(tmp_path: Path) -> None:
    (tmp_path / "redis").write_text(f"{SECRET} \n")
    (tmp_path / "sentinel").write_text("another\r\n")
    sentinel = {
        "service": "main",
        "nodes": ["a:1"],
        "username": "watch",
        "password_file": str(tmp_path / "sentinel"),
    }
    place = build_place(
        journal_of(username="me", password_file=str(tmp_path / "redis"), sentinel=sentinel),
    )
    assert dataclasses.astuple(place.login) == ("me", f"{SECRET} ")
    assert dataclasses.astuple(place.sentinel_login) == ("watch", "another")
    assert SECRET not in repr(place)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "must hold one line, the password"),
        (b"one\ntwo\n", "must hold one line, the password"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_password_file_that_cannot_be_used_is_a_mistake_with_its_key(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        build_place(journal_of(url="redis://a", password_file=str(file)))
    assert caught.value.mistakes == [f"journal.password_file: {file} {said}"]


async def test_each_store_says_what_it_survives(tmp_path: Path) -> None:
    async def of(**keys: object) -> list[str]:
        return await describe_journal(Journal(**keys))  # type: ignore[arg-type]

    assert await of(store="memory") == ["the journal, memory at memory, survives: nothing"]
    assert await of(path="j.db") == ["the journal, sqlite at j.db, survives: process_death"]
    full = await of(path="j.db", synchronous="full")
    assert full == ["the journal, sqlite at j.db, survives: power_loss, process_death"]


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="ee-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="always") as one:
        with one.ask() as asked:
            asked.config_set("requirepass", SECRET)
        yield one


def write_config(directory: Path, server: RedisServer, more: str = "") -> Path:
    (directory / "password").write_text(SECRET)
    config = directory / "config.yaml"
    config.write_text(
        f"{POOLS}operations: {{port: 0}}\nsidecar: {{socket: {directory}/s.sock}}\n"
        f"journal: {{store: redis, url: '{server.url}', password_file: {directory}/password{more}}}\n"
    )
    return config


async def test_jobs_in_memory_are_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    for store, lost in (("memory", True), ("sqlite", False)):
        lines = await describe_journal(Journal(store=store), with_jobs=True)  # type: ignore[arg-type]
        assert (LOST_JOBS in lines) == lost
    assert LOST_JOBS not in await describe_journal(Journal(store="memory"))
    pool = {"name": "chat", "models": ["m"], "replicas": [{"url": "http://127.0.0.1:1"}]}
    for jobs in ({}, None):
        caplog.clear()
        with caplog.at_level("WARNING", "envoy_ext"):
            data = {"pools": [pool], "journal": {"store": "memory"}, "jobs": jobs}
            await (await open_journal(parse_config(data, "test"))).close()
        assert [record.message for record in caplog.records] == ([] if jobs is None else ["journal_doubt"])


async def test_check_says_what_the_server_makes_of_it_and_writes_nothing_there(
    server: RedisServer, short_dir: Path
) -> None:
    config = write_config(short_dir, server, ", wait_replicas: 1")
    said = await describe_journal(load_config(config).journal)
    assert said == [
        f"the journal, redis at {server.url}, survives: power_loss, process_death, store_failover",
        "the server has 0 replicas and 1 are waited for: no write counts until it has them",
    ]
    with server.ask() as asked:
        asked.auth(SECRET)
        assert asked.dbsize() == 0
    server.kill()
    envoy = short_dir / "envoy"
    envoy.write_text("#!/bin/sh\n")  # one that accepts every rendering
    envoy.chmod(0o755)
    status, output, errors = await run_command("check", "-c", str(config), "--envoy", str(envoy))
    assert "the journal was not looked at: " in output
    assert "Connection refused" in output
    assert status == 0
    assert SECRET not in output + errors


async def test_a_sidecar_serves_with_it_and_shows_no_password(server: RedisServer, short_dir: Path) -> None:
    config = write_config(short_dir, server)
    log = short_dir / "log"
    with log.open("wb") as stderr:
        async with command("serve", "-c", str(config), stderr=stderr.fileno()) as running:
            port = (await running.read_line("operations at port")).rpartition(" ")[2]
            url = f"http://127.0.0.1:{port}"
            assert await fetch_operations(url, 5) == []
            async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz/ready") as answer:
                ready = await answer.json()
            assert ready["survives"] == ["power_loss", "process_death"]
            assert await running.end() == 0
    (opened,) = [
        line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "journal_opened"
    ]
    assert (opened["store"], opened["place"]) == ("redis", server.url)
    assert opened["guarantees"] == "power_loss,process_death"
    assert SECRET not in log.read_text()
    with server.ask() as asked:
        asked.auth(SECRET)
        assert asked.hgetall("{envoy-ext}:seats") == {}, "it has left its seat"


async def test_a_sidecar_without_its_server_does_not_start_and_says_why(
    server: RedisServer, short_dir: Path
) -> None:
    config = write_config(short_dir, server)
    (short_dir / "password").write_text("wrong-pa55")
    status, _, errors = await run_command("serve", "-c", str(config))
    assert status == 1
    assert errors.endswith("see journal.username and journal.password_file\n")
    assert "pa55" not in errors
