"""Which replicas a host name stands for, from one answer of the resolver to the next.

DNS is a weak witness. Resolvers hand out parts of a list in turn, drop the rest of an answer that is
too long, and give an empty answer while what stands behind them starts. So an address that an answer
leaves out gets no new work from that answer on, but is forgotten only with the next one that leaves
it out too: until then it may return as who it was. And an answer that would empty the pool must be
given twice before it counts. An error is no answer, however often it comes: it says something of the
resolver, or that the name does not exist, and nothing of any replica.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from envoy_ext.domain.discovery import Listing, Member, Standing
from envoy_ext.domain.ids import ReplicaId

MISSES: Final = 2
"""So many answers in a row must leave an address out, or hold none at all."""


class DnsAnswers:
    """What the answers about one name add up to."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        """Each address that counts, in the order they came, and how many answers in a row lack it."""
        self._empty = 0

    def take(self, addresses: Sequence[str]) -> Listing | None:
        """Take in the `ip:port` forms of an answer; None while an empty one does not count yet."""
        addresses = choose_family(addresses)
        self._empty = 0 if addresses else self._empty + 1
        if self._empty and self._empty < MISSES and self._missed:
            return None
        present = set(addresses)
        missed = {address: 0 if address in present else count + 1 for address, count in self._missed.items()}
        missed |= {address: 0 for address in addresses if address not in missed}
        gone = 1 if self._empty else MISSES
        self._missed = {address: count for address, count in missed.items() if count < gone}
        return Listing(tuple(_build_member(address, count) for address, count in self._missed.items()))


def choose_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """Those with IPv4, or all where there is none: a name's two families are two ways to the same replicas.

    IPv4 first as in Envoy's own cluster for names: many networks resolve IPv6 and do not carry it.
    """
    return tuple(one for one in addresses if not one.startswith("[")) or tuple(addresses)


def _build_member(address: str, missed: int) -> Member:
    replica = ReplicaId(address.replace("[", "").replace("]", ""))
    member = Member(replica, url=f"http://{address}", addresses=(address,))
    return replace(member, standing=Standing.LEAVING) if missed else member
