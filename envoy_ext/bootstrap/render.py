"""Envoy's bootstrap, rendered from the configuration: the one place that knows its shape.

Importing this module loads Envoy's typed messages, which takes a second or two: only what renders
should do so. Every value is checked against Envoy's own schema here, and by Envoy itself in
`envoy --mode validate`.
"""

from typing import Any, Final

import yaml
from betterproto2 import Casing
from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapDynamicResources,
    BootstrapStaticResources,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiConfigSource,
    ApiConfigSourceApiType,
    ApiVersion,
    BackoffStrategy,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Node,
    RetryPolicy,
)

from envoy_ext.bootstrap.parts import NEVER, duration, from_sidecar, socket_address
from envoy_ext.bootstrap.resources import build_static_resources, build_way_to_sidecar
from envoy_ext.config import Config
from envoy_ext.domain import names

NODE: Final = "envoy-ext"

_HEADER: Final = """\
# Envoy's bootstrap, rendered by `envoy-ext bootstrap` from the configuration of envoy-ext.
# Change the configuration and render again: the sidecar relies on what stands here.
"""
_FROM_SIDECAR: Final = """\
# Clusters, listeners, routes and endpoints come from the sidecar: a change of theirs changes nothing here.
"""


RECONNECT_S: Final = 0.2
MAX_RECONNECT_S: Final = 2.0
"""How long Envoy waits before it opens a broken xDS stream again. Its own 0.5 s, doubled up to 30 s, would
leave it with old endpoints for half a minute after a slow restart of a sidecar that sits beside it."""


def build_bootstrap(config: Config) -> Bootstrap:
    """The bootstrap as Envoy's own typed message."""
    if config.envoy.resources == "xds":
        return _build(config, _build_ads_for_everything(), build_way_to_sidecar(config))
    return build_full_bootstrap(config)


def build_full_bootstrap(config: Config) -> Bootstrap:
    """Everything but endpoints that come over xDS: what Envoy's validation can judge."""
    ads = _build_ads() if config.envoy.endpoints == "xds" else None
    return _build(config, ads, build_static_resources(config))


def _build(
    config: Config, dynamic: BootstrapDynamicResources | None, static: BootstrapStaticResources
) -> Bootstrap:
    admin = config.envoy.admin
    return Bootstrap(
        node=Node(id=NODE, cluster=NODE),
        admin=Admin(address=socket_address(admin.address, admin.port)) if admin else None,
        dynamic_resources=dynamic,
        static_resources=static,
    )


def _build_ads_for_everything() -> BootstrapDynamicResources:
    """Envoy is not ready, and says so, until it has been told what to serve."""
    ads = _build_ads()
    ads.cds_config = from_sidecar(NEVER)
    ads.lds_config = from_sidecar(NEVER)
    return ads


def _build_ads() -> BootstrapDynamicResources:
    """One stream to the sidecar for everything that moves, so that its order is the sidecar's."""
    back_off = BackoffStrategy(base_interval=duration(RECONNECT_S), max_interval=duration(MAX_RECONNECT_S))
    sidecar = GrpcServiceEnvoyGrpc(
        cluster_name=names.CLUSTER_SIDECAR, retry_policy=RetryPolicy(retry_back_off=back_off)
    )
    return BootstrapDynamicResources(
        ads_config=ApiConfigSource(
            api_type=ApiConfigSourceApiType.DELTA_GRPC,
            transport_api_version=ApiVersion.V3,
            set_node_on_first_message_only=True,
            grpc_services=[GrpcService(envoy_grpc=sidecar)],
        )
    )


def render_bootstrap(config: Config) -> dict[str, Any]:
    """The bootstrap as plain data that `json.dumps` and Envoy take."""
    return _render(build_bootstrap(config))


def render_full_bootstrap(config: Config) -> dict[str, Any]:
    """The full bootstrap as plain data."""
    return _render(build_full_bootstrap(config))


def _render(bootstrap: Bootstrap) -> dict[str, Any]:
    plain = _without_float_integers(bootstrap.to_dict(casing=Casing.SNAKE))
    assert isinstance(plain, dict)
    return plain


def render_bootstrap_yaml(config: Config) -> str:
    """The bootstrap as text for people; the same configuration always gives the same text."""
    header = _HEADER + (_FROM_SIDECAR if config.envoy.resources == "xds" else "")
    return header + yaml.safe_dump(render_bootstrap(config), sort_keys=False, width=120)


def _without_float_integers(value: object) -> object:
    """Whole numbers as such: Envoy's `json_format` takes the 0.0 of a protobuf double for text."""
    if isinstance(value, dict):
        return {key: _without_float_integers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_float_integers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
