"""What Envoy serves clients with, in the two forms it can come in: its bootstrap, or xDS resources."""

from dataclasses import dataclass

from envoy_data_plane.envoy.config.bootstrap.v3 import BootstrapStaticResources
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration

from envoy_ext.bootstrap.clusters import build_clusters, build_sidecar_cluster, name_streams_cluster
from envoy_ext.bootstrap.listeners import (
    build_egress_listener,
    build_ingress_listener,
    build_jobs_listener,
    routes_from_sidecar,
)
from envoy_ext.bootstrap.routes import build_egress_routes, build_ingress_routes
from envoy_ext.bootstrap.tools import build_tool_clusters, build_tool_listener, build_tool_routes
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
    routes = [build_ingress_routes(config), build_egress_routes(config)]
    ingress, egress = (routes_from_sidecar(one.name) for one in routes)
    listeners = [build_ingress_listener(config, ingress), build_egress_listener(config, egress)]
    clusters = build_clusters(config)
    if config.jobs is not None:
        job_routes = build_ingress_routes(config, names.LISTENER_JOBS)
        listeners.append(build_jobs_listener(config, routes_from_sidecar(job_routes.name)))
        routes.append(job_routes)
    if config.tools is not None:
        tool_routes = build_tool_routes(config.tools)
        by_name = routes_from_sidecar(tool_routes.name)
        listeners.append(build_tool_listener(config.tools, name_streams_cluster(config), by_name))
        routes.append(tool_routes)
        clusters += build_tool_clusters(config.tools)
    return Resources(tuple(clusters), tuple(listeners), tuple(routes))


def build_static_resources(config: Config) -> BootstrapStaticResources:
    """The same in a bootstrap, where listeners hold their routes."""
    listeners = [
        build_ingress_listener(config, build_ingress_routes(config)),
        build_egress_listener(config, build_egress_routes(config)),
    ]
    clusters = [build_sidecar_cluster(config), *build_clusters(config)]
    if config.jobs is not None:
        job_routes = build_ingress_routes(config, names.LISTENER_JOBS)
        listeners.append(build_jobs_listener(config, job_routes))
    if config.tools is not None:
        tool_routes = build_tool_routes(config.tools)
        listeners.append(build_tool_listener(config.tools, name_streams_cluster(config), tool_routes))
        clusters += build_tool_clusters(config.tools)
    return BootstrapStaticResources(listeners=listeners, clusters=clusters)


def build_way_to_sidecar(config: Config) -> BootstrapStaticResources:
    """All that has to be there before anything can come over xDS."""
    return BootstrapStaticResources(clusters=[build_sidecar_cluster(config)])
