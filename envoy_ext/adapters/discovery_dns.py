"""`ports.DiscoverySource` for a host name: each address it resolves to is a replica."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from envoy_ext.adapters.resolver import LookupFailed, look_up
from envoy_ext.domain.discovery import ListingFailed, Told
from envoy_ext.domain.dns_answers import DnsAnswers

LOOK_UP_EVERY_S: Final = 5.0
"""Envoy's own refresh of clusters by name (`dns_refresh_rate`). The system's resolver tells no TTL, and
those of names for replicas are about as short (5 s in CoreDNS)."""

LookUp = Callable[[str, int], Awaitable[tuple[str, ...] | LookupFailed]]


class DnsSource:
    """Asks again and again; an error tells nothing of any replica."""

    def __init__(
        self, host: str, port: int, *, every_s: float = LOOK_UP_EVERY_S, look_up: LookUp = look_up
    ) -> None:
        self._host = host
        self._port = port
        self._every_s = every_s
        self._look_up = look_up

    async def follow(self) -> AsyncGenerator[Told, None]:
        """The list after each answer, and what kept one from coming."""
        answers = DnsAnswers()
        while True:
            found = await self._look_up(self._host, self._port)
            if isinstance(found, LookupFailed):
                yield ListingFailed(found.reason, f"{self._host}: {found.detail}")
            else:
                yield answers.take(found) or ListingFailed("no_address", f"{self._host} has no address")
            await asyncio.sleep(self._every_s)
