"""What a round of looks and one push cost the sidecar, from 10 replicas to 10,000, part by part.

    python bench/fleet_cost.py [--rounds 7] [--json FILE]

In one process, on a clock of its own, without IO: a fleet of real gates, the picture, the endpoints of one
pool, a delta stream with them, metrics, capacity, rooms. Sizes are measured in turn, round by round. Each
part is measured twice: what a round costs for each replica when every one has told a new page, and what it
costs when the state of one replica of all has changed. Figures are medians of CPU time over the rounds.

`scrape_cost.py` measures the whole sidecar, with HTTP and parsing, which are the larger part of a look.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from prometheus_client import CollectorRegistry, generate_latest

from bench.eds_cost import CLUSTER, Stream
from envoy_ext.adapters.ops_answers import build_replica_json
from envoy_ext.config import parse_config
from envoy_ext.domain import names
from envoy_ext.domain.discovery import Member, MemberChanges
from envoy_ext.domain.fleet_events import ControlCallPassed, DrainRequested, Scraped, Undrained
from envoy_ext.domain.fleet_view import FleetView
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.sample import Sample
from envoy_ext.observability.metrics import Metrics
from envoy_ext.services.capacity import Capacity
from envoy_ext.services.fleet import TICK_S, Fleet
from envoy_ext.services.rooms import Rooms
from envoy_ext.wiring.capacity import build_capacity_policies
from envoy_ext.wiring.fleet import Endpoints, build_fleet_pools, show_replicas
from envoy_ext.xds.dialects import DELTA
from envoy_ext.xds.snapshot import Snapshot

SIZES: Final = (10, 100, 1_000, 10_000)
POOL: Final = PoolName(CLUSTER.removeprefix(names.POOL_CLUSTER_PREFIX))
ZONES: Final = 3
LONGEST_S: Final = 0.02
"""So long is a small fleet measured, by doing the same again."""


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


class Played:
    """One fleet with all that hears of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.replicas = [ReplicaId(f"replica-{number}") for number in range(size)]
        self.config = parse_config(
            {
                "pools": [
                    {
                        "name": POOL,
                        "models": ["bench"],
                        "engine": "vllm",
                        "capacity": {"concurrency": 32},
                        "discovery": {"dns": "bench.test:8000"},
                    }
                ]
            },
            "bench",
        )
        self.clock = Clock()
        self.views: list[FleetView] = []
        pools = build_fleet_pools(self.config.pools, over_xds=True)
        self.fleet = Fleet(pools, self.clock, self.views.append, lambda change: None)
        self.endpoints = Endpoints({})
        self.stream = Stream(DELTA)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, [POOL])
        self.metrics.fleet.watch_circuits(self.fleet.circuits.read_state)
        self.capacity = Capacity(build_capacity_policies(self.config.pools), self.clock)
        self.rooms = Rooms(self.fleet, {POOL: 32})
        members = tuple(build_member(number, one) for number, one in enumerate(self.replicas))
        self.fleet.change_members(POOL, MemberChanges(added=members))
        for replica in self.replicas:
            self.fleet.receive(replica, ControlCallPassed(1))
        self.turn = 0
        self.out = False
        for _ in range(32):  # past slow start
            self.pass_round()

    def pass_round(self) -> None:
        """A second in which all are looked at, and everything hears of it."""
        self.look_at_all()
        for _ in range(4):
            self.clock.at += TICK_S
            self.fleet.tick()
        self.tell()

    def tell(self) -> None:
        """Have everything hear of the picture."""
        view = self.fleet.view
        self.stream.push(self.endpoints.build(view))
        self.metrics.fleet.note_view(view)
        self.capacity.note_fleet(view)
        self.rooms.read(POOL)

    def look_at_all(self) -> None:
        """Each has a new page, with other figures than before."""
        self.turn += 1
        for number, replica in enumerate(self.replicas):
            running = float((number + 3 * self.turn) % 24)
            self.receive(replica, running)

    def receive(self, replica: ReplicaId, running: float) -> None:
        """A page."""
        at = self.clock.at
        sample = Sample(at, running=running, waiting=0, kv_cache_usage=running / 32, progress=self.turn)
        self.fleet.receive(replica, Scraped(sample, at))

    def change_one(self) -> None:
        """One is taken out, and is back at the next call."""
        replica = self.replicas[self.size // 2]
        self.out = not self.out
        self.fleet.receive(replica, DrainRequested(self.clock.at + 1e6) if self.out else Undrained())

    def measure(self, note: Callable[[str, str, Callable[[], object]], None]) -> None:
        """Each part once in a round of all, and once for one."""
        fleet = self.fleet
        for what, happen in (("all", self.look_at_all), ("one", self.change_one)):
            if what == "all":
                for _ in range(4):
                    note(what, "deadlines", lambda: list(fleet._judge()))
                    self.clock.at += TICK_S
                note(what, "looks", happen)
            else:
                happen()
            note(what, "picture, weights", lambda: fleet._refresh(self.clock.at))
            snapshot = None

            def build() -> None:
                nonlocal snapshot
                snapshot = self.endpoints.build(fleet.view)

            note(what, "endpoints", build)
            assert snapshot is not None
            pushed = snapshot
            note(what, "push, delta", lambda pushed=pushed: self.push(pushed))
            note(what, "own metrics", lambda: self.metrics.fleet.note_view(fleet.view))
            note(what, "capacity", lambda: self.capacity.note_fleet(fleet.view))
            note(what, "rooms", lambda: self.rooms.read(POOL))
        note("page", "/metrics", lambda: generate_latest(self.registry))
        note("page", "/v1/replicas", self.show)

    def push(self, snapshot: Snapshot) -> None:
        """To the bytes of an answer."""
        assert self.stream.push(snapshot)

    def show(self) -> str:
        """What `/v1/replicas` answers."""
        return json.dumps(
            [build_replica_json(one) for one in show_replicas(self.fleet.view, self.config, self.clock.at)]
        )


def build_member(number: int, replica: ReplicaId) -> Member:
    """One of three zones."""
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000"
    return Member(replica, f"http://{address}", (address,), zone=f"zone-{number % ZONES}")


def run(rounds: int) -> dict[str, dict[str, dict[int, float]]]:
    """CPU microseconds: of all, for each replica; of one, in all."""
    fleets = {size: Played(size) for size in SIZES}
    gc.collect()
    gc.freeze()
    seen: dict[tuple[str, str, int], list[float]] = {}
    for number in range(rounds + 1):
        for size, played in fleets.items():
            again = 1 if size >= 1_000 else 1_000 // size
            spent: dict[tuple[str, str], float] = {}

            def note(
                what: str, part: str, work: Callable[[], object], spent: dict[tuple[str, str], float] = spent
            ) -> None:
                started = time.thread_time_ns()
                work()
                spent[what, part] = spent.get((what, part), 0.0) + (time.thread_time_ns() - started) / 1e3

            for _ in range(again):
                played.measure(note)
            if number:
                for (what, part), us in spent.items():
                    share = us / again / (1 if what == "one" else size)
                    seen.setdefault((what, part, size), []).append(share)
    found: dict[str, dict[str, dict[int, float]]] = {}
    for (what, part, size), figures in seen.items():
        found.setdefault(what, {}).setdefault(part, {})[size] = statistics.median(figures)
    return found


TITLES: Final = {
    "all": "a round in which every replica has told a new page, us for each replica",
    "one": "one replica of all has changed its state, us in all",
    "page": "a page that somebody asks for, us for each replica",
}


def report(found: dict[str, dict[str, dict[int, float]]]) -> None:
    """Print the tables."""
    for what, parts in found.items():
        print(TITLES[what])
        print(f"  {'replicas':20}" + "".join(f"{size:>10,}" for size in SIZES) + f"{'10,000/10':>12}")
        if what != "page":
            sums = {size: sum(part[size] for part in parts.values()) for size in SIZES}
            parts = {**parts, "all of it": sums}
        for part, figures in parts.items():
            row = "".join(f"{figures[size]:>10.1f}" for size in SIZES)
            print(f"  {part:20}{row}{'x' + format(figures[SIZES[-1]] / figures[SIZES[0]], '.2f'):>12}")
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{given.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    figures = run(given.rounds)
    report(figures)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
