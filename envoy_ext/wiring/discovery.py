"""Discovery's part of the composition: from configuration to sources, and how they do to what is shown.

Belongs to the composition layer, beside `app`.
"""

from envoy_ext.adapters.discovery_dns import DnsSource
from envoy_ext.adapters.discovery_kubernetes import KubernetesSource
from envoy_ext.adapters.discovery_kubernetes_api import ServicePlace
from envoy_ext.adapters.discovery_static import StaticReplica, StaticSource
from envoy_ext.adapters.ops_answers import DiscoveryView
from envoy_ext.config import Pool, Replica
from envoy_ext.domain.discovery import Member
from envoy_ext.ports import DiscoverySource
from envoy_ext.services.discovery import DiscoveryState


def build_source(pool: Pool) -> DiscoverySource:
    """Where a pool's replicas are listed."""
    kubernetes = pool.discovery.kubernetes
    if kubernetes is not None:
        return KubernetesSource(
            ServicePlace(
                service=kubernetes.service,
                port=kubernetes.port,
                namespace=kubernetes.namespace,
                api=kubernetes.api,
                token_file=kubernetes.token_file,
                ca_file=kubernetes.ca_file,
            )
        )
    if pool.discovery.dns is not None:
        return DnsSource(pool.discovery.dns_origin.host, pool.discovery.dns_origin.port)
    return StaticSource([_build_static(replica) for replica in pool.replicas])


def _build_static(replica: Replica) -> StaticReplica:
    member = Member(
        replica=replica.id,
        url=replica.url,
        node=replica.node,
        zone=replica.zone,
        gpus=tuple(replica.gpus),
        metrics_url=replica.metrics_url,
        dcgm_url=replica.dcgm_url,
    )
    return StaticReplica(member, replica.origin.host, replica.origin.port)


def show_discovery(pool: Pool, state: DiscoveryState, now: float) -> DiscoveryView:
    """How a pool's source does, as `/v1/pools` shows it."""
    failure, failed_at = state.failure, state.failed_at
    return DiscoveryView(
        source=pool.discovery.source,
        listed=state.listed_at is not None,
        failing=None if failure is None else failure.reason,
        detail=None if failure is None else failure.detail,
        failing_for_s=None if failed_at is None else now - failed_at,
    )
