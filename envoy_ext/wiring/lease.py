"""The lease service's part of the composition: the doors at which workers ask.

Belongs to the composition layer, beside `app`.
"""

import os

from envoy_ext.adapters.lease_grpc import LeaseGrpcServer
from envoy_ext.adapters.lease_http import LeaseHttpServer
from envoy_ext.config import Config
from envoy_ext.domain.errors import CannotListen
from envoy_ext.services.leases import Leases


class LeaseDoors:
    """Opens what the configuration names. `start` once, `stop` once."""

    def __init__(self, config: Config, leases: Leases) -> None:
        self.ports: dict[str, int] = {}
        """By door, `http` or `grpc`, for those that are open."""
        self._doors: list[tuple[str, LeaseHttpServer | LeaseGrpcServer]] = []
        self._lease = config.lease
        if config.lease.http is not None:
            self._doors.append(("http", LeaseHttpServer(leases)))
        if config.lease.grpc is not None:
            self._doors.append(("grpc", LeaseGrpcServer(leases)))

    async def start(self) -> None:
        """Listen.

        Raises:
            CannotListen: a port is taken, or an address is not this host's.
        """
        for name, server in self._doors:
            door = getattr(self._lease, name)
            try:
                self.ports[name] = await server.start(door.address, door.port)
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else "is it taken?"
                place = f"{door.address}:{door.port}"
                raise CannotListen(f"lease.{name}: cannot listen at {place}: {why}") from error

    async def stop(self) -> None:
        """Close them all."""
        for _name, server in self._doors:
            await server.stop()
