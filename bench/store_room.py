"""What an operation, and a job, takes in a store: its room, and the CPU time of a Redis server.

    python bench/store_room.py [--operations 20000]

Whole lives of five calls each, jobs that wait and jobs that were cancelled are written by 500 tasks at once,
as one gateway writes them: to a real redis-server that keeps nothing on its disk, and to a SQLite file. Room
is what the server says of its memory, or the size of the file, after against before.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.job import JobBounds
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.ports import Store
from tests.support.jobs import REQUEST, new_job
from tests.support.records import START, whole_life
from tests.support.redis_server import RedisServer, redis_server

AT_ONCE = 500
CALLS = 5
WAITING = "a job that waits, with a request of 1,000 bytes"
ENDED = "a job that has ended, without its run"
ANSWER = KeptAnswer(200, (("content-type", "application/json"),), b"x" * 1_000)
KINDS: dict[str, tuple[bool, KeptAnswer | None]] = {
    "without a key": (False, None),
    "with a key": (True, None),
    "with a key and an answer of 1,000 bytes": (True, ANSWER),
}


async def write(store: Store, count: int, keyed: bool, answer: KeptAnswer | None) -> float:
    """The seconds it took."""
    seat = await store.take_seat("edge-1.example:4711")

    async def live(number: int) -> None:
        keys = {"key_hash": f"{number:064}"} if keyed else {}
        first, *rest, last = whole_life(f"op_01JXSE0N4R1A2B3C4D5E{number:06}", **keys)
        await store.begin(first, seat)
        for record in rest:
            await store.append([record], FIRST_TOKEN)
        await store.append([last], FIRST_TOKEN, answer)

    began = time.monotonic()
    for low in range(0, count, AT_ONCE):
        await asyncio.gather(*(live(number) for number in range(low, min(count, low + AT_ONCE))))
    return time.monotonic() - began


async def write_jobs(store: Store, count: int, ends: bool) -> float:
    """The seconds it took."""
    request = replace(REQUEST, body=b"x" * 1_000)
    bounds = JobBounds(max_jobs=count, max_bytes=2**40)

    async def live(number: int) -> None:
        job = f"op_01JXSE0N4R1A2B3C4D5E{number:06}"
        new = new_job(job, key_hash=f"{number:064}", body_bytes=1_000)
        await store.submit_job(new, request, bounds)
        if ends:
            await store.cancel_job(new.job_id, START)

    began = time.monotonic()
    for low in range(0, count, AT_ONCE):
        await asyncio.gather(*(live(number) for number in range(low, min(count, low + AT_ONCE))))
    return time.monotonic() - began


async def write_kind(store: Store, count: int, kind: str) -> tuple[float, int]:
    """The seconds it took, and how many calls each one made."""
    if kind in KINDS:
        return await write(store, count, *KINDS[kind]), CALLS
    return await write_jobs(store, count, kind == ENDED), 1 + (kind == ENDED)


def read_server(server: RedisServer) -> tuple[int, float]:
    """The bytes it uses, and the CPU seconds it has had."""
    with server.ask() as asked:
        cpu = asked.info("cpu")
        used: int = asked.info("memory")["used_memory"]
        return used, cpu["used_cpu_sys"] + cpu["used_cpu_user"]


def tell(store: str, kind: str, room: float, seconds: float, count: int, cpu: str) -> None:
    print(f"{store:8}{kind:50}{room / count:10,.0f} B{count / seconds:10,.0f}/s{cpu}")


async def measure_redis(count: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as directory, redis_server(Path(directory)) as server:
        journal = await RedisJournal.open(RedisPlace(nodes=(("127.0.0.1", server.port),)))
        before = read_server(server)
        seconds, calls = await write_kind(journal, count, kind)
        after = read_server(server)
        await journal.close()
        cpu = f"{(after[1] - before[1]) / (count * calls) * 1e6:8.1f} us of Redis' CPU for each call"
        tell("redis", kind, after[0] - before[0], seconds, count, cpu)


async def measure_sqlite(count: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.db"
        journal = await SqliteJournal.open(path)
        seconds, _ = await write_kind(journal, count, kind)
        await journal.close()
        tell("sqlite", kind, path.stat().st_size, seconds, count, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=20_000)
    count = parser.parse_args().operations
    for one in (measure_redis, measure_sqlite):
        for kind in (*KINDS, WAITING, ENDED):
            asyncio.run(one(count, kind))


if __name__ == "__main__":
    main()
