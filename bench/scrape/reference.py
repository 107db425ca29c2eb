"""The usual way to read the same pages: aiohttp and prometheus_client's parser, once a second.

    python -m bench.scrape.reference URL...    prints 0 when it has begun, then answers `cpu SECONDS`

It reads only a part of the fleet, as prometheus_client would need more than a core for all of it;
what is compared is the cost of one look. It judges nothing and builds nothing from what it read.
"""

import asyncio
import json
import sys

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.scrape.meter import Parts, measure, read_line

INTERVAL_S = 1.0


async def look(session: aiohttp.ClientSession, url: str, wait_s: float, parse: object) -> None:
    """Read one replica's page at each interval."""
    assert callable(parse)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(wait_s)
    while True:
        due = loop.time() + INTERVAL_S
        async with session.get(f"{url}/metrics") as answer:
            parse(await answer.text())
        await asyncio.sleep(max(0.0, due - loop.time()))


async def main() -> None:
    parts = Parts()
    parse = parts.wrap("parse", lambda page: list(text_string_to_metric_families(page)))
    urls = sys.argv[1:]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        looking = [
            group.create_task(look(session, url, INTERVAL_S * number / len(urls), parse))
            for number, url in enumerate(urls)
        ]
        print(json.dumps(0), flush=True)
        while line := await read_line():
            told = await measure(float(line.split()[1]), parts)
            print(json.dumps(told), flush=True)
        for task in looking:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
