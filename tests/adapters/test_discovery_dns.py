"""Names as lists of replicas: one by one in the static list, or all that one name resolves to."""

import asyncio
import contextlib
import socket

import pytest

from envoy_ext.adapters import resolver
from envoy_ext.adapters.discovery_dns import DnsSource
from envoy_ext.adapters.discovery_static import StaticReplica, StaticSource
from envoy_ext.adapters.resolver import LookupFailed, look_up, resolve
from envoy_ext.domain.discovery import Listing, ListingFailed, Standing
from tests.support.members import member

ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
Answer = tuple[str, ...] | LookupFailed
SERVFAIL = LookupFailed("resolver", "Temporary failure in name resolution")
NXDOMAIN = LookupFailed("no_such_name", "Name or service not known")


async def follow(*answers: Answer) -> list[dict[str, Standing] | str]:
    """What a source tells when its resolver answers so: who is listed, or why nobody is told."""
    left = list(answers)

    async def answer(host: str, port: int) -> Answer:
        assert (host, port) == ("vllm.ml", 8000)
        return left.pop(0)

    found: list[dict[str, Standing] | str] = []
    async with contextlib.aclosing(DnsSource("vllm.ml", 8000, every_s=0, look_up=answer).follow()) as told:
        while left:
            one = await anext(told)
            if isinstance(one, ListingFailed):
                found.append(one.reason)
                assert one.detail.startswith("vllm.ml")
            else:
                found.append({each.replica: each.standing for each in one.members})
    return found


async def test_every_address_of_a_name_is_a_replica() -> None:
    assert await follow((ONE, TWO)) == [{ONE: Standing.LISTED, TWO: Standing.LISTED}]


@pytest.mark.parametrize("error", [SERVFAIL, NXDOMAIN])
async def test_errors_never_empty_a_pool_however_many_come(error: LookupFailed) -> None:
    told = await follow((ONE,), *[error] * 20, (ONE,))
    assert told == [{ONE: Standing.LISTED}, *[error.reason] * 20, {ONE: Standing.LISTED}]


async def test_an_answer_without_addresses_is_a_failure_once_and_then_an_answer() -> None:
    assert await follow((ONE,), (), ()) == [{ONE: Standing.LISTED}, "no_address", {}]


# --- the static list --------------------------------------------------------------------------------


def static(name: str, host: str) -> StaticReplica:
    return StaticReplica(member(name, url=f"http://{host}:8000", addresses=()), host, 8000)


async def test_addresses_in_the_list_are_told_once() -> None:
    source = StaticSource([static("a", "10.0.0.1"), static("b", "2001:db8::1")], every_s=0)
    async with contextlib.aclosing(source.follow()) as told:
        listing = await anext(told)
        assert isinstance(listing, Listing)
        assert [one.addresses for one in listing.members] == [(ONE,), ("[2001:db8::1]:8000",)]
        again = asyncio.ensure_future(anext(told))
        await asyncio.sleep(0.05)
        assert not again.done()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_a_name_in_the_list_keeps_its_addresses_until_it_has_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [(ONE, TWO), (TWO, ONE), (), (TWO,)]

    async def answer(host: str, port: int) -> tuple[str, ...]:
        return answers.pop(0)

    monkeypatch.setattr("envoy_ext.adapters.discovery_static.resolve", answer)
    async with contextlib.aclosing(StaticSource([static("a", "gpu-1")], every_s=0).follow()) as told:
        found = [(await anext(told)).members[0].addresses for _ in range(4)]  # type: ignore[union-attr]
    assert found == [(ONE, TWO), (ONE, TWO), (ONE, TWO), (TWO,)]


# --- the system's resolver --------------------------------------------------------------------------


async def test_a_real_name_and_an_address() -> None:
    assert "127.0.0.1:80" in await resolve("localhost", 80)
    assert await look_up("10.0.0.1", 8000) == (ONE,)
    assert await look_up("2001:db8::1", 8000) == ("[2001:db8::1]:8000",)


ERRORS = [
    (socket.gaierror(socket.EAI_NONAME, "unknown"), LookupFailed("no_such_name", "unknown")),
    (socket.gaierror(socket.EAI_AGAIN, "try again"), LookupFailed("resolver", "try again")),
    (socket.gaierror(socket.EAI_FAIL, "failed"), LookupFailed("resolver", "failed")),
    (OSError(24, "Too many open files"), LookupFailed("resolver", "Too many open files")),
]
if resolver._NO_DATA is not None:
    ERRORS.append((socket.gaierror(resolver._NO_DATA, "no address"), ()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "outcome"), ERRORS, ids=str)
async def test_what_the_resolver_says_is_told_apart(
    error: OSError, outcome: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object, **more: object) -> object:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    assert await look_up("vllm.ml", 8000) == outcome


async def test_an_address_of_a_link_is_none_for_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*args: object, **more: object) -> object:
        return [(0, 0, 0, "", ("fe80::1%eth0", 80, 0, 2)), (0, 0, 0, "", ("10.0.0.1", 80))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answer)
    assert await look_up("vllm.ml", 8000) == (ONE,)
