"""`GET /v1/operations`: what may be asked, and the page of the journal that answers it.

Two orders: the newest first, or, with `since`, the oldest first from a moment on, for whoever wants all.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.adapters.moment_codec import parse_moment
from envoy_ext.adapters.operation_codec import build_operator_json
from envoy_ext.adapters.ops_answers import dump_json
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.domain.tool_calls import ToolCall
from envoy_ext.ports import NO_OPERATION, Store

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1_000
MAX_SCANNED: Final = 1_000
"""Operations looked at for one page when a state is asked for; the journal has no index by state.
A page that hits this limit is short, and its `next` goes on from there."""
_SCAN_PAGE: Final = 200
_ENCODED_AT_ONCE: Final = 50
"""Encoding one operation takes some 20 us of the event loop that the streams run on."""

_OPERATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


Place = tuple[float, OperationId]
"""When an operation began, and its id: where a listing that is oldest first stands."""
_PLACE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,20})?)~([A-Za-z0-9_-]{1,64})", re.ASCII)


class BadQuery(Exception):
    """The query cannot be understood; the text is for the caller and repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """What part of the journal is asked for."""

    limit: int = DEFAULT_LIMIT
    before: OperationId | None = None
    state: OperationState | None = None
    since: Place | None = None
    """Oldest first, from behind this place."""


@dataclass(frozen=True, slots=True)
class Page:
    """Operations, and where the next page goes on (None: there is no more)."""

    operations: list[Operation]
    next: str | None
    """For `before`, or for `after` where the oldest come first."""
    calls: Sequence[Sequence[ToolCall]] | None = None
    """Of the ledger of each; None: not looked up."""


def read_operation_id(text: str) -> OperationId | None:
    """An id that the journal can be asked for; None for text that is none."""
    return OperationId(text) if _OPERATION_ID.fullmatch(text) else None


def read_listing_query(parameters: Iterable[tuple[str, str]]) -> ListingQuery:
    """The query's parameters, or a `BadQuery` that says which one is wrong."""
    given: dict[str, str] = {}
    for name, value in parameters:
        if name not in ("limit", "before", "state", "since", "after"):
            raise BadQuery("The parameters are limit, state, before, since and after.")
        if name in given:
            raise BadQuery(f"{name}: is given twice.")
        given[name] = value
    if "before" in given and ("since" in given or "after" in given):
        raise BadQuery("before: lists the newest first, since and after the oldest: give one of them.")
    return ListingQuery(
        limit=_read_limit(given["limit"]) if "limit" in given else DEFAULT_LIMIT,
        before=_read_before(given["before"]) if "before" in given else None,
        state=_read_state(given["state"]) if "state" in given else None,
        since=_read_since(given.get("since"), given.get("after")),
    )


async def list_page(journal: Store, query: ListingQuery) -> Page:
    """One page of the journal, or a `BadQuery` when `before` is not in it."""
    if query.since is not None:
        return await _list_since(journal, query, query.since)
    if query.before is not None and await journal.get(query.before) is None:
        raise BadQuery("before: no operation has this id.")
    if query.state is None:
        # One more than asked for tells whether there is a next page.
        found = await journal.list_recent(query.limit + 1, query.before)
        more = len(found) > query.limit
        page = found[: query.limit]
        return Page(page, page[-1].operation_id if more else None)
    return await _list_by_state(journal, query, query.state)


async def encode_page(page: Page) -> str:
    """The page as JSON, with a turn of the event loop for the streams every now and then."""
    encoded: list[str] = []
    all_calls = [None] * len(page.operations) if page.calls is None else page.calls
    for operation, calls in zip(page.operations, all_calls, strict=True):
        if encoded and len(encoded) % _ENCODED_AT_ONCE == 0:
            await asyncio.sleep(0)
        encoded.append(dump_json(build_operator_json(operation, calls)))
    return f'{{"operations":[{",".join(encoded)}],"next":{dump_json(page.next)}}}'


async def _list_since(journal: Store, query: ListingQuery, since: Place) -> Page:
    """From a place on, with everything that is shown of each operation when it is asked for by its id."""
    page = await _walk_since(journal, query, since)
    return replace(page, calls=[await journal.read_calls(one.ledger_id) for one in page.operations])


async def _walk_since(journal: Store, query: ListingQuery, since: Place) -> Page:
    """From a place on, until the page is full; the same look ahead as below."""
    page: list[Operation] = []
    place = since
    size = query.limit + 1 if query.state is None else _SCAN_PAGE
    for _ in range(MAX_SCANNED // _SCAN_PAGE):
        found = await journal.list_since(place[0], size, place[1])
        for operation in found:
            if len(page) == query.limit:
                return Page(page, _write_place(place))
            if query.state is None or operation.state is query.state:
                page.append(operation)
            place = (operation.created_at, operation.operation_id)
        if len(found) < size:
            return Page(page, None)
    return Page(page, _write_place(place))


async def _list_by_state(journal: Store, query: ListingQuery, state: OperationState) -> Page:
    """Walk the journal until the page is full; look one operation ahead, so that `next` is true."""
    page: list[Operation] = []
    last = query.before
    for _ in range(MAX_SCANNED // _SCAN_PAGE):
        found = await journal.list_recent(_SCAN_PAGE, last)
        for operation in found:
            if len(page) == query.limit:
                return Page(page, last)
            if operation.state is state:
                page.append(operation)
            last = operation.operation_id
        if len(found) < _SCAN_PAGE:
            return Page(page, None)
    return Page(page, last)


def _read_limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_LIMIT:
        return int(text)
    raise BadQuery(f"limit: must be a whole number from 1 to {MAX_LIMIT}.")


def _read_since(since: str | None, after: str | None) -> Place | None:
    if after is not None:
        found = _PLACE.fullmatch(after)
        if found is None:
            raise BadQuery("after: must be the next of the page before.")
        return float(found[1]), OperationId(found[2])
    if since is None:
        return None
    try:
        return parse_moment(since), NO_OPERATION
    except ValueError as mistake:
        raise BadQuery(f"since: {mistake}.") from None


def _write_place(place: Place) -> str:
    # Not in the form of an exponent, which no clock of ours has, and with every digit of the float.
    return f"{place[0]!r}~{place[1]}"


def _read_before(text: str) -> OperationId:
    operation_id = read_operation_id(text)
    if operation_id is None:
        raise BadQuery("before: must be the id of an operation.")
    return operation_id


def _read_state(text: str) -> OperationState:
    try:
        return OperationState(text)
    except ValueError:
        raise BadQuery(f"state: must be one of {', '.join(OperationState)}.") from None
