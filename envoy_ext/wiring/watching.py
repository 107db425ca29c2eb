"""The watch over replicas as part of the composition: who lists them, looks at them, and cancels there.

Belongs to the composition layer, beside `app`.
"""

from dataclasses import dataclass

from envoy_ext.adapters.engines import get_engine
from envoy_ext.adapters.identity import IdentityReader
from envoy_ext.adapters.scraper import Scraper
from envoy_ext.config import Config
from envoy_ext.observability.metrics import Metrics
from envoy_ext.ports import Clock, Observer
from envoy_ext.services.background import Background
from envoy_ext.services.cancels import Cancels
from envoy_ext.services.discovery import Discovery
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.replica_keys import ReadKey
from envoy_ext.services.watching import Watcher
from envoy_ext.wiring.discovery import build_source
from envoy_ext.wiring.fleet import build_watch_plans


@dataclass(frozen=True, slots=True)
class WatchParts:
    """All that goes out to replicas, and to those who list them, beside the requests themselves."""

    scraper: Scraper
    identities: IdentityReader
    watcher: Watcher
    discovery: Discovery

    async def close(self) -> None:
        """Close the connections. For when nothing is looked at any more."""
        await self.scraper.close()
        await self.identities.close()


def build_watch(
    config: Config, fleet: Fleet, read_key: ReadKey, clock: Clock, observer: Observer, metrics: Metrics
) -> WatchParts:
    """The watch, which does nothing before it is run."""
    scraper, identities = Scraper(clock, read_key=read_key), IdentityReader(read_key=read_key)
    watcher = Watcher(
        scraper,
        identities,
        fleet,
        clock,
        build_watch_plans(config),
        metrics.fleet.note_scrape_failure,
        observer.note_bug,
    )
    discovery = Discovery(
        {pool.name: build_source(pool) for pool in config.pools},
        clock,
        listeners=[fleet.change_members, watcher.change_members],
        on_told=metrics.fleet.note_discovery,
        on_bug=observer.note_bug,
    )
    return WatchParts(scraper, identities, watcher, discovery)


def build_cancels(
    config: Config, scraper: Scraper, fleet: Fleet, background: Background, metrics: Metrics
) -> Cancels:
    """What asks engines to end cancelled attempts, where they can."""
    pools = {pool.name: pool.engine for pool in config.pools if get_engine(pool.engine).abort is not None}
    return Cancels(scraper, fleet, pools, background, metrics.fleet.note_abort)
