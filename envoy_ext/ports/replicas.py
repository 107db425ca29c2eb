"""What is asked of replicas and of those who list them."""

from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Protocol

from envoy_ext.domain.discovery import Told
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import AttemptId, PoolName
from envoy_ext.domain.sample import Sample, ScrapeFailure, ScrapeTarget


class Reach(StrEnum):
    """What a connection attempt says of a process."""

    REFUSED = "refused"
    """Its host says that nobody listens there: it is dead."""
    ACCEPTED = "accepted"
    """Somebody listens there."""
    SILENT = "silent"
    """No answer, or no way there: nothing is known."""


class ReachProbe(Protocol):
    """A look whether a process is there."""

    async def look(self, address: str) -> Reach:
        """Try a connection to an `ip:port`; takes a second at most."""


class IdentitySource(Protocol):
    """Asks one replica's engine what it serves. Each call ends within a bound of the implementation's."""

    async def read_identity(self, target: ScrapeTarget, pool: PoolName) -> Fingerprint:
        """What the engine tells; None in every field that it does not, or that could not be read."""


class ScrapeSource(Protocol):
    """One look at one replica. Each call ends within a bound that the implementation knows.

    Whatever a replica answers or fails to answer is a value; no call raises for it, none waits for
    another replica, and none holds the event loop for longer than a few milliseconds.
    """

    async def scrape(self, target: ScrapeTarget) -> Sample | ScrapeFailure:
        """The replica's metrics, with those of its GPUs when they came too."""

    async def probe_health(self, target: ScrapeTarget) -> bool | ScrapeFailure:
        """True when the engine says that it is alive, which is not that it is ready."""

    async def probe_model(self, target: ScrapeTarget, model: str, api_path: str) -> bool | ScrapeFailure:
        """True when the model gave one real token, or embedding; False when a 200 held something else."""


class AbortSource(Protocol):
    """Asks an engine to end one request of ours. Each call ends within a bound of the implementation's."""

    async def abort(self, target: ScrapeTarget, attempt_id: AttemptId) -> ScrapeFailure | None:
        """Ask once; None when the engine took the call, which is no word on what came of it."""


class DiscoverySource(Protocol):
    """Where the list of one pool's replicas comes from."""

    def follow(self) -> AsyncGenerator[Told, None]:
        """The whole list, each time it may have changed. It never ends by itself.

        Whatever keeps the source from telling is a value too, and no exception; then the last list stands,
        and the next value that is a list ends the failure. Ids are unique within a list.
        """
