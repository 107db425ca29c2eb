"""Who may ask the operations port for what: foreign web pages may not, and changes need a right."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from envoy_ext.adapters.ops_guard import (
    Caller,
    build_change_guard,
    decide_change,
    is_local_host,
    is_loopback,
    read_token_file,
)
from envoy_ext.domain.errors import ConfigError
from tests.support.ops_port import OpsPort

TOKEN = "s3cret-token"

CURL = Caller(peer="127.0.0.1", host="127.0.0.1:9902", origin=None, authorization=None, forwarded=False)
"""What curl on this machine looks like."""


# --- whose Host -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9902", "localhost.:9902", "127.0.0.1:9902", "127.8.9.10", "[::1]:9902", "[::1]"],
)
async def test_a_name_of_this_machine_is_served_on_loopback(ops: OpsPort, host: str) -> None:
    assert (await ops.ask("/v1/operations", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9902",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "evil.example#localhost",
        "10.0.0.1",
        "[2001:db8::1]:9902",
        "2130706433",
        "localhost:9902:9902",
        "",
    ],
)
async def test_a_foreign_name_that_resolves_to_loopback_is_refused(ops: OpsPort, host: str) -> None:
    for path in ("/v1/operations", "/metrics", "/healthz/live", "/nothing"):
        reply = await ops.ask(path, headers={"Host": host})
        assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden")


async def raw(port: int, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_second_host_header_does_not_hide_the_first(ops: OpsPort) -> None:
    head = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nHost: evil.example"
    assert (await raw(ops.port, head)).split(b" ")[1] in (b"400", b"403")


async def test_a_probe_that_speaks_http_1_0_without_host_is_served(ops: OpsPort) -> None:
    assert (await raw(ops.port, b"GET /healthz/live HTTP/1.0")).startswith(b"HTTP/1.0 200")


async def test_on_other_addresses_any_name_is_served() -> None:
    async with OpsPort(address="0.0.0.0").serving() as ops:
        reply = await ops.ask("/metrics", headers={"Host": "envoy-ext.llm.svc.cluster.local:9902"})
    assert reply.status == 200


async def test_ipv6_loopback_is_served_and_guarded_like_the_other() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with OpsPort(address="::1").serving() as ops, aiohttp.ClientSession() as session:
        url = f"http://[::1]:{ops.port}/metrics"
        async with session.get(url) as response:
            assert response.status == 200
        async with session.get(url, headers={"Host": "evil.example"}) as response:
            assert response.status == 403


def test_the_configured_address_may_be_in_host() -> None:
    assert is_local_host("10.1.2.3:9902", "10.1.2.3")
    assert not is_local_host("10.1.2.4:9902", "10.1.2.3")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.255.0.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost", False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_is_an_address_and_not_a_name(address: str | None, loopback: bool) -> None:
    assert is_loopback(address) is loopback


# --- who may change state -------------------------------------------------------------------


def test_without_a_token_this_machine_may_change_state_and_others_may_not() -> None:
    assert decide_change(CURL, None) is None
    for peer in ("10.0.0.7", "2001:db8::1", None):
        refusal = decide_change(replace(CURL, peer=peer), None)
        assert refusal is not None
        assert refusal.status == 403


def test_without_a_token_what_a_proxy_passes_on_does_not_count_as_from_this_machine() -> None:
    refusal = decide_change(replace(CURL, forwarded=True), None)
    assert refusal is not None
    assert refusal.status == 403


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:9902", "http://evil.example"),
        ("127.0.0.1:9902", "null"),
        ("127.0.0.1:9902", "http://127.0.0.1:8080"),
        ("evil.example:9902", None),
        ("evil.example:9902", "http://evil.example:9902"),
    ],
)
def test_without_a_token_a_web_page_may_not_change_state_through_a_browser_here(
    host: str, origin: str | None
) -> None:
    refusal = decide_change(replace(CURL, host=host, origin=origin), None)
    assert refusal is not None
    assert refusal.status == 403


def test_the_ports_own_page_may() -> None:
    assert decide_change(replace(CURL, origin="http://127.0.0.1:9902"), None) is None


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN} "])
def test_with_the_token_anyone_may_from_anywhere(authorization: str) -> None:
    far = Caller("203.0.113.9", "ops.example", "http://page.example", authorization, forwarded=True)
    assert decide_change(far, TOKEN) is None


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN.upper()}",
        "Bearer \udcff",
    ],
)
def test_where_a_token_is_configured_nobody_may_without_it_not_even_from_here(
    authorization: str | None,
) -> None:
    refusal = decide_change(replace(CURL, authorization=authorization), TOKEN)
    assert refusal is not None
    assert refusal.status == 401


class GuardedPort:
    """One path that changes state, behind the guard."""

    def __init__(self, token: str | None) -> None:
        self.changes = 0
        self.token = token
        self.url = ""

    async def change(self, _request: web.Request) -> web.Response:
        self.changes += 1
        return web.json_response({})

    async def start(self) -> web.AppRunner:
        app = web.Application(middlewares=[build_change_guard(self.token)])
        app.add_routes([web.post("/drain", self.change), web.get("/look", self.change)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


@pytest_asyncio.fixture(params=[None, TOKEN])
async def guarded(request: pytest.FixtureRequest) -> AsyncIterator[GuardedPort]:
    port = GuardedPort(request.param)
    runner = await port.start()
    yield port
    await runner.cleanup()


async def test_a_change_that_is_refused_does_not_happen_and_one_that_is_allowed_does(
    guarded: GuardedPort,
) -> None:
    good = {"Authorization": f"Bearer {TOKEN}"} if guarded.token else {}
    bad = {"Authorization": "Bearer wrong"} if guarded.token else {"Origin": "http://evil.example"}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{guarded.url}/drain", headers=bad) as refused:
            assert refused.status == (401 if guarded.token else 403)
            assert refused.headers.get("www-authenticate", "").startswith("Bearer") is bool(guarded.token)
            assert set((await refused.json())["error"]) == {"code", "type", "message"}
        assert guarded.changes == 0
        async with session.post(f"{guarded.url}/drain", headers=good) as allowed:
            assert allowed.status == 200
        assert guarded.changes == 1


async def test_reads_need_no_token_and_wrong_paths_and_methods_are_told_so(guarded: GuardedPort) -> None:
    async with aiohttp.ClientSession() as session:
        statuses = {}
        for method, path in (("GET", "/look"), ("HEAD", "/look"), ("POST", "/look"), ("POST", "/nothing")):
            async with session.request(method, guarded.url + path) as response:
                statuses[method, path] = response.status
    assert statuses == {
        ("GET", "/look"): 200,
        ("HEAD", "/look"): 200,
        ("POST", "/look"): 405,
        ("POST", "/nothing"): 404,
    }


# --- the token file -------------------------------------------------------------------------


def test_the_token_is_the_files_one_line_without_the_blanks_around_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\r\n")
    assert read_token_file(str(file)) == TOKEN


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"two\nlines", b"caf\xc3\xa9", b"a\x00b"])
def test_a_file_that_holds_no_token_is_a_mistake_that_does_not_repeat_its_content(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_token_file(str(file))
    assert caught.value.mistakes == [f"operations.token_file: {file} must hold one token of printable ASCII"]


async def test_a_token_file_that_is_not_there_keeps_the_port_from_starting(tmp_path: Path) -> None:
    server = OpsPort(token_file=str(tmp_path / "none")).build()
    with pytest.raises(ConfigError, match=r"operations\.token_file: .* cannot be read: No such file"):
        await server.start("127.0.0.1", 0)


async def test_the_port_serves_reads_when_a_token_is_configured(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with OpsPort(token_file=str(file)).serving() as ops:
        assert (await ops.ask("/v1/operations")).status == 200
