"""What Envoy serves clients with, in the two forms it can come in: its bootstrap, or xDS resources."""

from dataclasses import dataclass

from envoy_data_plane.envoy.config.bootstrap.v3 import BootstrapStaticResources
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration

from envoy_ext.bootstrap.clusters import build_clusters, build_sidecar_cluster
from envoy_ext.bootstrap.listeners import (
    build_egress_listener,
    build_ingress_listener,
    routes_from_sidecar,
)
from envoy_ext.bootstrap.routes import build_egress_routes, build_ingress_routes
from envoy_ext.config import Config
from envoy_ext.domain import names


@dataclass(frozen=True, slots=True)
class Resources:
    """Each is a resource of its own; listeners name their routes, and clusters of replicas their endpoints.

    The cluster that leads to the sidecar is not among them: Envoy needs it to get here.
    """

    clusters: tuple[Cluster, ...]
    listeners: tuple[Listener, ...]
    routes: tuple[RouteConfiguration, ...]


def build_resources(config: Config) -> Resources:
    """For an Envoy that has nothing but a way to the sidecar."""
    routes = (build_ingress_routes(config), build_egress_routes(config))
    ingress, egress = (routes_from_sidecar(one.name) for one in routes)
    return Resources(
        clusters=tuple(build_clusters(config)),
        listeners=(build_ingress_listener(config, ingress), build_egress_listener(config, egress)),
        routes=routes,
    )


def build_static_resources(config: Config) -> BootstrapStaticResources:
    """The same in a bootstrap, where listeners hold their routes."""
    return BootstrapStaticResources(
        listeners=[
            build_ingress_listener(config, build_ingress_routes(config)),
            build_egress_listener(config, build_egress_routes(config)),
        ],
        clusters=[build_sidecar_cluster(config, names.CLUSTER_SIDECAR), *build_clusters(config)],
    )


def build_way_to_sidecar(config: Config) -> BootstrapStaticResources:
    """All that has to be there before anything can come over xDS."""
    return BootstrapStaticResources(clusters=[build_sidecar_cluster(config, names.CLUSTER_SIDECAR)])
