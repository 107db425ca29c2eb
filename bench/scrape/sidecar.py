"""The whole sidecar as `app` builds it, over many replicas: the process whose cost is measured.

python -m bench.scrape.sidecar CONFIG    prints its gRPC port when every replica has given its token,
                                         then answers `cpu SECONDS` and `loop SECONDS`
"""

import asyncio
import json
import sys
from dataclasses import replace

import uvloop

from bench.scrape.meter import Parts, measure, measure_loop, read_line
from envoy_ext import app as composition
from envoy_ext.adapters import engines
from envoy_ext.adapters.ads import AdsHub
from envoy_ext.config import load_config
from envoy_ext.observability.fleet_metrics import FleetMetrics
from envoy_ext.services.capacity import Capacity
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.fleet_picture import FleetPicture
from envoy_ext.wiring.fleet import Endpoints

LOOK_S = 0.1


def divide(parts: Parts) -> None:
    """Have the parts measured; what is in none of them is HTTP, the event loop and gRPC."""
    for name, engine in list(engines.ENGINES.items()):
        engines.ENGINES[name] = replace(engine, parse=parts.wrap("parse", engine.parse))
    measured = (
        ("gates", Fleet, "receive"),
        ("picture, weights", FleetPicture, "read_some"),
        ("picture, weights", FleetPicture, "take"),
        ("endpoints, push", Endpoints, "build"),
        ("endpoints, push", AdsHub, "publish"),
        ("endpoints, push", AdsHub, "_push"),
        ("own metrics, capacity", FleetMetrics, "note_view"),
        ("own metrics, capacity", Capacity, "note"),
    )
    for part, owner, name in measured:
        setattr(owner, name, parts.wrap(part, getattr(owner, name)))


async def wait_proven(app: composition.App, count: int) -> None:
    """Until each replica is known, and its model has answered."""
    while True:
        replicas = [one for pool in app.fleet.view.pools for one in pool.replicas]
        if len(replicas) == count and all(one.status.started for one in replicas):
            return
        await asyncio.sleep(LOOK_S)


async def main() -> None:
    parts = Parts()
    divide(parts)
    config = load_config(sys.argv[1])
    app = composition.App(config)
    await app.start()
    composition.exempt_from_collection()
    try:
        await wait_proven(app, sum(len(pool.replicas) for pool in config.pools))
        print(json.dumps(app.grpc_port), flush=True)
        while line := await read_line():
            what, seconds = line.split()
            told = await (measure(float(seconds), parts) if what == "cpu" else measure_loop(float(seconds)))
            print(json.dumps(told), flush=True)
    finally:
        await app.stop()


if __name__ == "__main__":
    uvloop.run(main())
