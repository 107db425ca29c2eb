"""A process that appends to a journal until it is killed, and says each thing it was promised.

Run as `python -m tests.support.journal_crash_writer PATH SYNCHRONOUS ROUND`. After an append returns, the
records of that call are printed, one line of JSON each: these must survive whatever comes next.
"""

import asyncio
import itertools
import sys

from envoy_ext.adapters.journal_codec import encode_record
from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.ids import SeatId
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, Record
from tests.support.records import whole_life

LANES = 8


async def append_and_say(journal: SqliteJournal, seat: SeatId, records: list[Record]) -> None:
    first = records[0]
    if isinstance(first, OperationBegun):
        await journal.begin(first, seat)
    else:
        await journal.append(records, FIRST_TOKEN)
    # One write for the whole call, so that no line is cut in two by another task's.
    sys.stdout.write("".join(f"{encode_record(record)}\n" for record in records))
    sys.stdout.flush()


async def live(journal: SqliteJournal, seat: SeatId, round_: str, lane: int) -> None:
    """One operation after another; each call holds one record, or the last two together."""
    for number in itertools.count():
        *early, last_but_one, last = whole_life(f"op_{round_}_{lane}_{number}")
        for record in early:
            await append_and_say(journal, seat, [record])
        await append_and_say(journal, seat, [last_but_one, last])


async def main(path: str, synchronous: str, round_: str) -> None:
    assert synchronous in ("normal", "full")
    journal = await SqliteJournal.open(path, synchronous="full" if synchronous == "full" else "normal")
    seat = await journal.take_seat("gw")
    await asyncio.gather(*(live(journal, seat, round_, lane) for lane in range(LANES)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
