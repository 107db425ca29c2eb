"""`ports.DiscoverySource` for a list in the configuration: always the same replicas, by name or address."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.adapters.resolver import is_ip, resolve
from envoy_ext.domain.discovery import Listing, Member, Told

RESOLVE_EVERY_S: Final = 5.0
"""Envoy's own refresh of STRICT_DNS clusters (`dns_refresh_rate`), so both see the same addresses."""
SLOW_S: Final = 0.5
"""How long the list waits for a name: less than a start waits for the first list."""


@dataclass(frozen=True, slots=True)
class StaticReplica:
    """One entry of the list; its addresses are found by its host."""

    member: Member
    host: str
    port: int


class StaticSource:
    """Tells the list once, and again while names in it may come to mean other addresses."""

    def __init__(self, replicas: Sequence[StaticReplica], every_s: float = RESOLVE_EVERY_S) -> None:
        self._replicas = replicas
        self._every_s = every_s

    async def follow(self) -> AsyncGenerator[Told, None]:
        """The list with the addresses of this moment; a name that does not resolve keeps those it had.

        A name that is slow to resolve delays no other replica: it is listed without addresses until then.
        """
        members = [one.member for one in self._replicas]
        asked: dict[int, asyncio.Task[tuple[str, ...]]] = {}
        try:
            while True:
                for number, one in enumerate(self._replicas):
                    if number not in asked:
                        asked[number] = asyncio.create_task(resolve(one.host, one.port))
                await asyncio.wait(asked.values(), timeout=SLOW_S)
                for number in [number for number, task in asked.items() if task.done()]:
                    members[number] = _with_addresses(members[number], asked.pop(number).result())
                yield Listing(tuple(members))
                await self._wait(asked.values())
        finally:
            for task in asked.values():
                task.cancel()

    async def _wait(self, late: Collection[asyncio.Task[tuple[str, ...]]]) -> None:
        """Until there may be something else to tell."""
        if late:
            await asyncio.wait(late, timeout=self._every_s, return_when=asyncio.FIRST_COMPLETED)
        elif all(is_ip(one.host) for one in self._replicas):
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(self._every_s)


def _with_addresses(member: Member, addresses: tuple[str, ...]) -> Member:
    """In the order they had: the resolver's may turn, and nothing follows from it."""
    if not addresses or set(addresses) == set(member.addresses):
        return member
    return replace(member, addresses=addresses)
