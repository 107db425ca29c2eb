"""All that is offered at one moment: frozen, versioned by content, checked before it is served."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import Resource, compute_version

Offer = Mapping[str, Resource]
"""The resources of one kind by name; not to be changed."""

_PARENTS: Final = ((Kind.CDS, Kind.EDS), (Kind.LDS, Kind.RDS))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is offered, by kind. A kind that is not in it is not served: requests for it get no answer.

    An empty pool belongs in it, with an assignment of no endpoints: Envoy keeps the endpoints of an
    assignment that is merely gone, and sends work to a replica that is not there any more.
    """

    offers: Mapping[Kind, Offer]
    versions: Mapping[Kind, str]
    """The same resources give the same version, on every server and in every order."""

    def find_inconsistencies(self) -> tuple[str, ...]:
        """What Envoy would wait for in vain, or never ask for; one line each, nothing when all is well.

        Only kinds that are both served are held against each other: with clusters in its bootstrap an
        Envoy takes endpoints alone from here.
        """
        found: list[str] = []
        for parent, child in _PARENTS:
            if parent not in self.offers or child not in self.offers:
                continue
            named = {name for one in self.offers[parent].values() for name in one.refers_to}
            offered = self.offers[child].keys()
            found += (f"{child} {name} is named by {parent}, not there" for name in sorted(named - offered))
            found += (f"{child} {name} is not named by {parent}" for name in sorted(offered - named))
        return tuple(found)


def build_snapshot(served: Mapping[Kind, Iterable[Resource]]) -> Snapshot:
    """A snapshot that serves these kinds.

    Raises:
        ValueError: two resources of a kind have one name, or one stands under another kind.
    """
    offers: dict[Kind, Offer] = {}
    for kind, resources in served.items():
        offer: dict[str, Resource] = {}
        for resource in resources:
            if resource.kind is not kind:
                raise ValueError(f"{resource.kind} {resource.name} among {kind}")
            # A client has to refuse an answer in which a name stands twice:
            # https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#duplicate-resource-names
            if resource.name in offer:
                raise ValueError(f"{kind} {resource.name} twice")
            offer[resource.name] = resource
        offers[kind] = MappingProxyType(offer)
    versions = {kind: compute_version(offer.values()) for kind, offer in offers.items()}
    return Snapshot(MappingProxyType(offers), MappingProxyType(versions))
