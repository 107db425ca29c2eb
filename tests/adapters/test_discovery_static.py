"""The list of the configuration: complete at once, whatever its names are worth at the moment."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from envoy_ext.adapters import discovery_static, resolver
from envoy_ext.adapters.discovery_static import StaticReplica, StaticSource
from envoy_ext.adapters.resolver import resolve
from envoy_ext.domain.discovery import Listing, Told
from envoy_ext.domain.ids import ReplicaId
from tests.support.members import member

Answers = dict[str, tuple[str, ...] | asyncio.Event]


def listed(*hosts: str) -> list[StaticReplica]:
    return [StaticReplica(member(host, addresses=()), host, 8000) for host in hosts]


async def next_addresses(lists: AsyncGenerator[Told, None]) -> dict[ReplicaId, tuple[str, ...]]:
    async with asyncio.timeout(10):
        told = await anext(lists)
    assert isinstance(told, Listing)
    return {one.replica: one.addresses for one in told.members}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What each name resolves to; an event is waited for before there is an answer."""
    found: Answers = {}

    async def answer(host: str, port: int) -> tuple[str, ...]:
        one = found.get(host, ())
        if isinstance(one, asyncio.Event):
            await one.wait()
            one = found[host]
            assert not isinstance(one, asyncio.Event)
        return tuple(f"{ip}:{port}" for ip in one)

    monkeypatch.setattr(discovery_static, "resolve", answer)
    return found


async def test_a_name_that_does_not_resolve_is_listed_and_comes_in_when_it_does(answers: Answers) -> None:
    answers["there"] = ("10.0.0.1",)
    async with aclosing(StaticSource(listed("there", "later"), every_s=0.01).follow()) as lists:
        assert await next_addresses(lists) == {"there": ("10.0.0.1:8000",), "later": ()}
        answers["later"] = ("10.0.0.2",)
        assert await next_addresses(lists) == {"there": ("10.0.0.1:8000",), "later": ("10.0.0.2:8000",)}


async def test_a_name_that_is_slow_to_resolve_delays_no_other_replica(answers: Answers) -> None:
    slow = asyncio.Event()
    answers |= {"there": ("10.0.0.1",), "slow": slow}
    # Long after the test: only the slow name's own answer can bring the second list.
    async with aclosing(StaticSource(listed("there", "slow"), every_s=3600).follow()) as lists:
        assert await next_addresses(lists) == {"there": ("10.0.0.1:8000",), "slow": ()}
        answers["slow"] = ("10.0.0.2",)
        slow.set()
        assert await next_addresses(lists) == {"there": ("10.0.0.1:8000",), "slow": ("10.0.0.2:8000",)}


async def test_a_name_that_resolves_no_more_keeps_what_it_had(answers: Answers) -> None:
    answers["there"] = ("10.0.0.1",)
    async with aclosing(StaticSource(listed("there"), every_s=0.01).follow()) as lists:
        await next_addresses(lists)
        answers["there"] = ()
        assert await next_addresses(lists) == {"there": ("10.0.0.1:8000",)}
        answers["there"] = ("10.0.0.9",)
        assert await next_addresses(lists) == {"there": ("10.0.0.9:8000",)}


@pytest.mark.parametrize(
    ("found", "addresses"),
    [
        (["::1", "127.0.0.1"], ("127.0.0.1:8000",)),
        (["10.0.0.1", "fd00::1", "10.0.0.2"], ("10.0.0.1:8000", "10.0.0.2:8000")),
        (["fd00::1"], ("[fd00::1]:8000",)),
    ],
)
async def test_of_both_families_a_name_has_the_one_that_networks_mostly_reach(
    monkeypatch: pytest.MonkeyPatch, found: list[str], addresses: tuple[str, ...]
) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return [(None, None, None, "", (ip, 8000)) for ip in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await resolve("name", 8000) == addresses


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 64 + ".example", "a..b"])
async def test_a_name_that_cannot_be_has_no_addresses_and_no_exception(name: str) -> None:
    assert await resolver.resolve(name, 8000) == ()
