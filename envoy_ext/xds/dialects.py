"""The two protocols on an aggregated stream, as far as they differ: how a request reads, how an answer looks.

Anchors in comments are of https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)

from envoy_ext.domain.errors import PeerViolation
from envoy_ext.xds.kinds import ROOTS, Kind
from envoy_ext.xds.resources import Resource, build_empty_assignment
from envoy_ext.xds.subscription import Change, ChangeNames, SetNames

MOST_NAMES: Final = 10_000
"""Of one kind on one stream. A name is a pool or a route configuration; ten thousand of them are more than
any Envoy is known to run with, and what is kept of them stays below a few megabytes."""
MOST_NAME_BYTES: Final = 512
"""Twice the longest name of a host in DNS, which names of clusters are often made of."""

_SERVICE: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, in the words that both protocols share."""

    type_url: str
    nonce: str
    refusal: str | None
    """Why the client refused the answer with this nonce. The presence of `error_detail` is what tells a
    refusal, its version does not: #ack-nack-and-resource-type-instance-version"""
    node: str
    change: Change


@dataclass(frozen=True, slots=True)
class News:
    """What an answer is to say."""

    kind: Kind
    resources: Sequence[Resource]
    absent: Sequence[str]
    """Names of what is not there."""
    version: str
    nonce: str


class Dialect(Protocol):
    """One of the two protocols."""

    method: str
    """The full gRPC method name."""
    request: Any
    response: Any
    """The message classes."""

    def read(self, request: Any) -> Ask:
        """A request in shared words.

        Raises:
            PeerViolation: more names than a client may have, or one that is no name.
        """

    def is_stale(self, nonce: str, newest: str) -> bool:
        """Whether what a request says of names is overtaken, given the newest nonce sent for its kind."""

    def is_whole(self, kind: Kind) -> bool:
        """Whether each answer holds all that the client should have: what it leaves out is deleted."""

    def build(self, news: News) -> Any:
        """The answer; None when this protocol has no way to say that."""


class StateOfTheWorld:
    """`StreamAggregatedResources`: each request names everything."""

    method = f"{_SERVICE}/StreamAggregatedResources"
    request: Any = DiscoveryRequest
    response: Any = DiscoveryResponse

    def read(self, request: Any) -> Ask:
        """`version_info` is not read. A stream's first request may carry one from an earlier server, and it
        may be ours. To be silent then is allowed for clusters and listeners alone
        (#ack-nack-and-resource-type-instance-version) and saves nothing, since Envoy skips what it has;
        and a cluster that was warming when the last stream broke would wait in vain.
        """
        refusal = request.error_detail.message if request.HasField("error_detail") else None
        change = SetNames(_read_names(request.resource_names))
        return Ask(request.type_url, request.response_nonce, refusal, request.node.id, change)

    def is_stale(self, nonce: str, newest: str) -> bool:
        """An answer that crossed the request will be acknowledged with all names: #resource-updates.

        Before the first answer of a stream any nonce is as good as none: they do not survive a stream.
        """
        return newest not in ("", nonce)

    def is_whole(self, kind: Kind) -> bool:
        """#grouping-resources-into-responses, #deleting-resources"""
        return kind in ROOTS

    def build(self, news: News) -> Any:
        """An answer of nothing is one for the roots alone. Of others it says nothing: none is built."""
        resources = news.resources
        if news.kind is Kind.EDS:
            # No way to say "there is no such assignment", and a warming cluster would wait 15 s for one
            # (#knowing-when-a-requested-resource-does-not-exist): no endpoints is the same in effect.
            # A made-up route configuration, in contrast, would answer 404 to everybody.
            resources = (*resources, *map(build_empty_assignment, news.absent))
        if not resources and not self.is_whole(news.kind):
            return None
        response = DiscoveryResponse(version_info=news.version, type_url=news.kind.type_url, nonce=news.nonce)
        for resource in resources:
            response.resources.add(type_url=news.kind.type_url, value=resource.value)
        return response


class Delta:
    """`DeltaAggregatedResources`: requests and answers name what changes."""

    method = f"{_SERVICE}/DeltaAggregatedResources"
    request: Any = DeltaDiscoveryRequest
    response: Any = DeltaDiscoveryResponse

    def read(self, request: Any) -> Ask:
        """A request in shared words."""
        refusal = request.error_detail.message if request.HasField("error_detail") else None
        held = request.initial_resource_versions
        change = ChangeNames(
            _read_names(request.resource_names_subscribe),
            _read_names(request.resource_names_unsubscribe),
            {name: held[name] for name in _read_names(held)},
        )
        return Ask(request.type_url, request.response_nonce, refusal, request.node.id, change)

    def is_stale(self, nonce: str, newest: str) -> bool:
        """Never: "the server must honor changes to the subscription state even if the nonce is stale"
        (#incremental-xds)."""
        return False

    def is_whole(self, kind: Kind) -> bool:
        """Never."""
        return False

    def build(self, news: News) -> Any:
        """What changed, and what is not there; with neither it still says that there is no more to come."""
        response = DeltaDiscoveryResponse(
            system_version_info=news.version,
            type_url=news.kind.type_url,
            nonce=news.nonce,
            removed_resources=news.absent,
        )
        for resource in news.resources:
            one = response.resources.add(name=resource.name, version=resource.version)
            one.resource.type_url = news.kind.type_url
            one.resource.value = resource.value
        return response


def check_count(count: int) -> None:
    """Raises `PeerViolation` for more names than a client may have."""
    if count > MOST_NAMES:
        raise PeerViolation(f"more than {MOST_NAMES} names of one kind on a stream")


def _read_names(given: Collection[str]) -> tuple[str, ...]:
    check_count(len(given))  # before any of them is copied
    names = tuple(given)
    if any(len(name.encode()) > MOST_NAME_BYTES for name in names):
        raise PeerViolation(f"a name of more than {MOST_NAME_BYTES} bytes")
    return names


STATE_OF_THE_WORLD: Final = StateOfTheWorld()
DELTA: Final = Delta()
