"""The journal over the operations port: one operation, and pages of many."""

from dataclasses import replace
from typing import Any

import pytest

from envoy_ext.adapters.operation_codec import build_operation_json, format_time
from envoy_ext.adapters.ops_operations import MAX_LIMIT, MAX_SCANNED
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.records import Record
from tests.support.journals import keep
from tests.support.ops_port import OpsPort
from tests.support.records import START, attempt_started, begun, first_delta_sent, interrupted, whole_life


def failed(operation: str) -> list[Record]:
    return [
        begun(operation),
        attempt_started(operation),
        first_delta_sent(operation),
        interrupted(operation),
    ]


async def fill(ops: OpsPort, count: int) -> None:
    """Operations op_0 (the oldest) to op_{count - 1}; every third one failed."""
    for number in range(count):
        records = failed(f"op_{number}") if number % 3 == 0 else whole_life(f"op_{number}")
        await keep(ops.journal, records)


async def list_ids(ops: OpsPort, query: str) -> tuple[list[str], str | None]:
    reply = await ops.ask(f"/v1/operations{query}")
    assert reply.status == 200, reply.text
    return [one["operation_id"] for one in reply.json["operations"]], reply.json["next"]


async def walk(ops: OpsPort, query: str) -> list[str]:
    """Every id, page by page, as a client that follows `next` gets them."""
    found, following = await list_ids(ops, f"?{query}")
    while following is not None:
        page, following = await list_ids(ops, f"?{query}&before={following}")
        found += page
    return found


def error_of(reply_json: Any) -> tuple[str, str]:
    return reply_json["error"]["code"], reply_json["error"]["message"]


# --- one operation --------------------------------------------------------------------------


async def test_an_operation_is_shown_as_its_records_tell_it(ops: OpsPort) -> None:
    await keep(ops.journal, failed("op_1"))
    operation = build_operation(failed("op_1"))
    assert operation is not None
    reply = await ops.ask("/v1/operations/op_1")
    assert reply.status == 200
    assert reply.json == build_operation_json(operation) | {"owner": "gw/1"}


@pytest.mark.parametrize("name", ["op_2", "op_1%00", "..%2Fop_1", "%ff", "op_1%0a", "x" * 65, "op 1"])
async def test_an_id_that_is_not_in_the_journal_is_a_404(ops: OpsPort, name: str) -> None:
    await keep(ops.journal, whole_life("op_1"))
    reply = await ops.ask(f"/v1/operations/{name}")
    assert reply.status == 404
    assert error_of(reply.json) == ("not_found", "The journal knows no operation of this id.")


async def test_a_journal_that_cannot_be_read_is_a_503_and_no_bug(ops: OpsPort) -> None:
    await ops.journal.close()
    for path in ("/v1/operations", "/v1/operations/op_1", "/v1/operations?before=op_1"):
        reply = await ops.ask(path)
        assert reply.status == 503
        assert error_of(reply.json) == ("journal_unavailable", "The journal cannot be read.")
    assert ops.bugs.seen == []


# --- pages ----------------------------------------------------------------------------------


async def test_an_empty_journal_is_an_empty_last_page(ops: OpsPort) -> None:
    assert await list_ids(ops, "") == ([], None)
    assert await list_ids(ops, "?state=failed") == ([], None)


async def test_operations_come_newest_first_and_next_says_where_to_go_on(ops: OpsPort) -> None:
    await fill(ops, 5)
    assert await list_ids(ops, "?limit=2") == (["op_4", "op_3"], "op_3")
    assert await list_ids(ops, "?limit=2&before=op_3") == (["op_2", "op_1"], "op_1")
    assert await list_ids(ops, "?limit=2&before=op_1") == (["op_0"], None)
    assert await list_ids(ops, "?limit=5") == (["op_4", "op_3", "op_2", "op_1", "op_0"], None)


async def test_a_listing_shows_whole_operations(ops: OpsPort) -> None:
    await keep(ops.journal, failed("op_1"))
    listed = (await ops.ask("/v1/operations")).json["operations"]
    # A page of them would be as many questions to the ledger; it does not say that there are none.
    assert listed == [{**(await ops.ask("/v1/operations/op_1")).json, "tool_calls": None}]


async def test_without_a_limit_a_page_is_bounded(ops: OpsPort) -> None:
    await fill(ops, 60)
    ids, following = await list_ids(ops, "")
    assert (len(ids), following) == (50, "op_10")


async def test_the_largest_page_is_whole(ops: OpsPort) -> None:
    await fill(ops, MAX_LIMIT + 1)
    ids, following = await list_ids(ops, f"?limit={MAX_LIMIT}")
    assert ids == [f"op_{number}" for number in range(MAX_LIMIT, 0, -1)]
    assert following == "op_1"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, MAX_LIMIT])
async def test_following_next_meets_every_operation_of_a_state_once(ops: OpsPort, limit: int) -> None:
    await fill(ops, 31)
    expected = [f"op_{number}" for number in reversed(range(31)) if number % 3 == 0]
    assert await walk(ops, f"state=failed&limit={limit}") == expected
    assert await walk(ops, f"state=running&limit={limit}") == []


async def test_a_page_by_state_that_is_just_full_has_no_next_when_nothing_follows(ops: OpsPort) -> None:
    await fill(ops, 4)
    assert await list_ids(ops, "?state=failed&limit=2") == (["op_3", "op_0"], None)


async def test_a_state_that_is_rare_is_looked_for_in_bounded_steps(ops: OpsPort) -> None:
    await keep(ops.journal, failed("op_rare"))
    for number in range(MAX_SCANNED + 5):
        await keep(ops.journal, whole_life(f"op_{number}"))
    assert await list_ids(ops, "?state=failed") == ([], "op_5")
    assert await walk(ops, "state=failed") == ["op_rare"]


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        (f"limit={MAX_LIMIT + 1}", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("limit=1e1", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=" + "9" * 5_000, "limit"),
        ("limit=1&limit=2", "limit"),
        ("before=op_unknown", "before"),
        ("before=", "before"),
        ("before=op_1%00", "before"),
        ("before=%ff", "before"),
        ("state=Failed", "state"),
        ("state=", "state"),
        ("stat=failed", "The parameters are limit, state, before, since and after."),
        ("=", "The parameters are limit, state, before, since and after."),
    ],
)
async def test_a_query_that_cannot_be_meant_is_a_400_that_says_which_part(
    ops: OpsPort, query: str, complaint: str
) -> None:
    await fill(ops, 3)
    reply = await ops.ask(f"/v1/operations?{query}")
    assert reply.status == 400
    code, message = error_of(reply.json)
    assert code == "invalid_request"
    assert message.startswith(complaint)


async def test_the_states_that_may_be_asked_for_are_in_the_complaint(ops: OpsPort) -> None:
    reply = await ops.ask("/v1/operations?state=odd")
    assert reply.json["error"]["message"] == "state: must be one of running, completed, failed, cancelled."


# --- oldest first -----------------------------------------------------------------------------


def at(second: float) -> str:
    return format_time(START + second) or ""


async def fill_by_time(ops: OpsPort, count: int) -> None:
    """As `fill`, one second apart; the first two at once."""
    for number in range(count):
        records = failed(f"op_{number:02}") if number % 3 == 0 else whole_life(f"op_{number:02}")
        records[0] = replace(records[0], at=START + max(1, number))
        await keep(ops.journal, records)


async def walk_since(ops: OpsPort, query: str) -> list[str]:
    found, following = await list_ids(ops, f"?{query}")
    while following is not None:
        page, following = await list_ids(ops, f"?{query}&after={following}")
        found += page
    return found


async def test_since_a_moment_operations_come_oldest_first(ops: OpsPort) -> None:
    await fill_by_time(ops, 5)
    ids, following = await list_ids(ops, f"?since={at(2)}&limit=2")
    assert ids == ["op_02", "op_03"]
    assert await list_ids(ops, f"?after={following}") == (["op_04"], None)
    assert await list_ids(ops, f"?since={at(5)}") == ([], None)
    assert await list_ids(ops, "?since=2025-06-15") == ([f"op_{n:02}" for n in range(5)], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, MAX_LIMIT])
async def test_following_next_meets_every_operation_since_once(ops: OpsPort, limit: int) -> None:
    await fill_by_time(ops, 31)
    ids = [f"op_{number:02}" for number in range(31)]
    assert await walk_since(ops, f"since={at(0)}&limit={limit}") == ids
    assert await walk_since(ops, f"since={at(0)}&limit={limit}&state=failed") == ids[::3]
    assert await walk_since(ops, f"since={at(0)}&limit={limit}&state=running") == []


async def test_a_rare_state_since_does_not_make_one_request_read_the_whole_journal(ops: OpsPort) -> None:
    for number in range(MAX_SCANNED + 5):
        await keep(ops.journal, [replace(begun(f"op_{number:04}"), at=START + number)])
    ids, following = await list_ids(ops, f"?since={at(0)}&state=failed")
    assert ids == []
    assert following is not None
    assert following.endswith(f"~op_{MAX_SCANNED - 1:04}")
    assert await list_ids(ops, f"?after={following}&state=failed") == ([], None)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=yesterday", "since: not a moment: write 2026-11-30T18:00:00Z"),
        ("since=2025-02-30", "since: no such moment"),
        ("since=2025-06-15&since=2025-06-15", "since: is given twice."),
        ("since=2025-06-15&before=op_1", "before: lists the newest first"),
        ("after=op_1", "after: must be the next of the page before."),
        ("after=1e9~op_1", "after: must be the next of the page before."),
        ("after=1~", "after: must be the next of the page before."),
    ],
)
async def test_a_listing_since_that_cannot_be_understood_is_told_why(
    ops: OpsPort, query: str, said: str
) -> None:
    reply = await ops.ask(f"/v1/operations?{query}")
    assert reply.status == 400
    assert error_of(reply.json)[1].startswith(said)
