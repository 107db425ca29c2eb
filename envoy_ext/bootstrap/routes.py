"""The routes: from the ingress everything to the hop, with the retry policy; from the egress to the pools."""

from typing import Final

from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from envoy_ext.bootstrap.parts import NEVER, duration
from envoy_ext.config import Config, Pool
from envoy_ext.domain import names

REPLAY_BUFFER_FACTOR: Final = 2
"""The router gives up a replay whose body is above its limit, and Envoy 1.36 counts a body twice that a
filter has already buffered. The buffer filter holds the real limit."""

BACK_OFF_S: Final = 0.025
MAX_BACK_OFF_S: Final = 0.5
"""Short, because what a replay waits for is the fence, and the gate waits for that. Envoy's default, of
which it takes a part by lot: behind a proof of death this is most of what there is to wait for."""


def build_ingress_routes(config: Config, listener: str = names.LISTENER_INGRESS) -> RouteConfiguration:
    """Of the ingress, or of the jobs listener, whose requests are repeated by the same rules."""
    return RouteConfiguration(
        name=listener,
        virtual_hosts=[
            VirtualHost(
                name=listener,
                domains=["*"],
                include_request_attempt_count=True,
                request_body_buffer_limit=REPLAY_BUFFER_FACTOR * config.limits.max_request_bytes,
                routes=[
                    Route(
                        match=RouteMatch(prefix="/"),
                        route=RouteAction(
                            cluster=names.CLUSTER_EGRESS,
                            timeout=NEVER,
                            idle_timeout=NEVER,
                            retry_policy=_build_retry_policy(config),
                        ),
                    )
                ],
            )
        ],
    )


def build_egress_routes(config: Config) -> RouteConfiguration:
    """The delivery filter names the pool; without its word there is no route, so nothing passes unwatched."""
    return RouteConfiguration(
        name=names.LISTENER_EGRESS,
        virtual_hosts=[
            VirtualHost(
                name=names.LISTENER_EGRESS,
                domains=["*"],
                routes=[_build_pool_route(pool) for pool in config.pools],
            )
        ],
    )


def _build_pool_route(pool: Pool) -> Route:
    return Route(
        match=RouteMatch(
            prefix="/",
            headers=[HeaderMatcher(name=names.POOL, string_match=StringMatcher(exact=pool.name))],
        ),
        route=RouteAction(cluster=names.POOL_CLUSTER_PREFIX + pool.name, timeout=NEVER, idle_timeout=NEVER),
        request_headers_to_remove=[names.EXCHANGE, names.POOL],
        # Only what this Envoy or the sidecar says may be taken for a mark, never a replica's own header.
        response_headers_to_remove=[names.REPLAY, names.REFUSAL],
    )


def _build_retry_policy(config: Config) -> RetryPolicy | None:
    retries = config.on_upstream_failure.attempts_allowed - 1
    if retries == 0:
        return None
    return RetryPolicy(
        retry_on="retriable-headers",
        num_retries=retries,
        retriable_headers=[HeaderMatcher(name=names.REPLAY, present_match=True)],
        retry_back_off=RetryPolicyRetryBackOff(
            base_interval=duration(BACK_OFF_S), max_interval=duration(MAX_BACK_OFF_S)
        ),
    )
