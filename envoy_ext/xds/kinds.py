"""The kinds of resources that are served, in the order in which Envoy warms them."""

from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """A kind of resource. The values are metric labels.

    The order of the members is the order of a push: what is referred to comes before what refers to it.
    https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#eventual-consistency-considerations
    """

    CDS = "cds"
    EDS = "eds"
    LDS = "lds"
    RDS = "rds"

    @property
    def type_url(self) -> str:
        """The name of the kind in requests, responses and `Any`."""
        return _TYPE_URLS[self]


_TYPE_URLS: Final = {
    Kind.CDS: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    Kind.EDS: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    Kind.LDS: "type.googleapis.com/envoy.config.listener.v3.Listener",
    Kind.RDS: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
}

BY_TYPE_URL: Final = {type_url: kind for kind, type_url in _TYPE_URLS.items()}

ROOTS: Final = frozenset({Kind.CDS, Kind.LDS})
"""The kinds nothing else names: a client asks for all of them, and what is left out of a
state-of-the-world answer is deleted.
https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#grouping-resources-into-responses"""

REFERRERS: Final[dict[Kind, tuple[Kind, ...]]] = {
    Kind.CDS: (Kind.LDS, Kind.RDS),
    Kind.EDS: (Kind.CDS,),
    Kind.LDS: (),
    Kind.RDS: (Kind.LDS,),
}
"""Kind -> the kinds whose resources may name one of it; a listener can hold its routes itself."""
