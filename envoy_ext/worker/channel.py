"""How a worker reaches the gateway that granted a lease."""

from enum import StrEnum
from typing import Protocol

from envoy_ext.domain.worker_lease import Renewal, WorkerLease


class Answer(StrEnum):
    """What came of a renewal."""

    GRANTED = "granted"
    REFUSED = "refused"
    """Revoked, or known to no gateway: final."""
    UNKNOWN = "unknown"
    """A gateway's word that it knows no such attempt. Another one may."""
    NONE = "none"
    """No answer came; the next renewal may get one."""


class LeaseChannel(Protocol):
    """To the gateways. Neither call raises for a gateway that cannot be reached."""

    async def renew(self, renewal: Renewal) -> Answer:
        """Ask for more time. Only a gateway that knows the lease may refuse it: never `UNKNOWN`."""

    async def acknowledge(self, lease: WorkerLease) -> bool:
        """Say that generation has stopped; False when nobody heard it."""

    async def close(self) -> None:
        """Let go of connections."""


class GatewayLink(Protocol):
    """To one gateway, by one protocol. Neither call raises for a gateway that cannot be reached, and
    neither takes longer than the link allows a call."""

    async def renew(self, renewal: Renewal) -> Answer:
        """Ask this gateway for more time."""

    async def tell_stopped(self, lease: WorkerLease) -> bool | None:
        """Tell it that generation has stopped: whether it knows the attempt, None for no answer."""

    async def close(self) -> None:
        """Let go of connections."""
