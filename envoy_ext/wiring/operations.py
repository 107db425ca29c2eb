"""The operations port as part of the composition: what it reads from, and where it listens.

Belongs to the composition layer, beside `app`.
"""

import os

from envoy_ext.adapters.ops_http import OpsServer
from envoy_ext.config import Config, Operations
from envoy_ext.domain.errors import CannotListen
from envoy_ext.observability.metrics import Metrics
from envoy_ext.ports import Clock, Observer, Store
from envoy_ext.services.callers import Callers
from envoy_ext.services.capacity import Capacity
from envoy_ext.services.discovery import Discovery
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.health import HealthState
from envoy_ext.services.queues import Queues
from envoy_ext.wiring.discovery import show_discovery
from envoy_ext.wiring.fleet import show_pools, show_replicas


def build_operations(
    config: Config,
    *,
    journal: Store,
    health: HealthState,
    exchanges: Exchanges,
    fleet: Fleet,
    queues: Queues,
    discovery: Discovery,
    capacity: Capacity,
    callers: Callers | None,
    clock: Clock,
    observer: Observer,
    metrics: Metrics,
) -> OpsServer:
    """The port for people and programs."""
    return OpsServer(
        journal=journal,
        registry=metrics.registry,
        health=health,
        observer=observer,
        token_file=config.operations.token_file,
        count_inflight=lambda: exchanges.inflight,
        list_replicas=lambda: show_replicas(fleet.view, config, clock.now()),
        list_pools=lambda: show_pools(
            fleet.view,
            config,
            metrics.count_inflight,
            queues.show,
            lambda pool: show_discovery(pool, discovery.read_state(pool.name), clock.now()),
        ),
        list_capacity=capacity.list_pools,
        show_callers=lambda: None if callers is None else callers.show(),
        drain=lambda replica, limit_s: fleet.drain(replica, limit_s) is not None,
        undrain=fleet.undrain,
    )


async def start_operations(server: OpsServer, operations: Operations) -> int:
    """Listen for people and programs, and return the port.

    Raises:
        CannotListen: the port is taken, or the address is not this host's.
    """
    try:
        return await server.start(operations.address, operations.port)
    except OSError as error:
        place, why = f"{operations.address}:{operations.port}", os.strerror(error.errno or 0)
        raise CannotListen(f"operations: cannot listen at {place}: {why}") from error
