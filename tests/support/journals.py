"""Words to fill a journal with, for tests that are not about who owns what."""

from collections.abc import Coroutine, Sequence
from typing import TypeVar

from envoy_ext.domain.ids import SeatId
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.records import OperationBegun, Record
from envoy_ext.ports import Journal

T = TypeVar("T")


async def keep(journal: Journal, records: Sequence[Record], seat: SeatId | None = None) -> SeatId:
    """Write what happens to operations, in the name of whoever owns them; the seat new ones begin in."""
    seat = await journal.take_seat("gw") if seat is None else seat
    for operation_id in dict.fromkeys(record.operation_id for record in records):
        own = [record for record in records if record.operation_id == operation_id]
        begun = next((record for record in own if isinstance(record, OperationBegun)), None)
        if begun is not None:
            earlier = await _find_earlier(journal, begun)
            assert await journal.begin(begun, seat, None if earlier is None else earlier.operation_id) is None
            own.remove(begun)
        known = await journal.get(operation_id)
        assert known is not None
        await journal.append(own, known.token)
    return seat


def run_now(work: Coroutine[object, object, T]) -> T:
    """The result of a call that does not wait, as none of a memory journal does."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


async def _find_earlier(journal: Journal, begun: OperationBegun) -> Operation | None:
    if begun.key_hash is None:
        return None
    return await journal.find_by_key(begun.caller, begun.path, begun.key_hash)


async def leave(journal: Journal, seat: SeatId) -> None:
    """The gateway in this seat is gone."""
    seats = await journal.read_seats()
    assert await journal.remove_seat(seat, seats[seat])
