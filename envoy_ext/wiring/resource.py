"""What Envoy gets over xDS besides endpoints, from the same builders as its bootstrap.

Belongs to the composition layer, beside `app`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from envoy_ext.config import Config
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import Resource, read_resource

FixedResources = Mapping[Kind, tuple[Resource, ...]]
"""By kind, all that follows from the configuration and so stays the same as long as the sidecar runs."""


def build_fixed_resources(config: Config) -> FixedResources:
    """Clusters, listeners and routes where Envoy takes them from the sidecar; otherwise nothing.

    The first call loads Envoy's typed messages, which takes a second and some 15 MB: not while anybody
    waits for an answer.
    """
    if config.envoy.resources != "xds":
        return MappingProxyType({})
    from envoy_ext.bootstrap.resources import build_resources

    built = build_resources(config)
    return MappingProxyType(
        {
            kind: tuple(read_resource(kind, bytes(message)) for message in messages)
            for kind, messages in (
                (Kind.CDS, built.clusters),
                (Kind.LDS, built.listeners),
                (Kind.RDS, built.routes),
            )
        }
    )
