"""`GET /v1/operations`: what may be asked, and the page of the journal that answers it."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envoy_ext.adapters.operation_codec import build_operation_json
from envoy_ext.adapters.ops_answers import dump_json
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.ports import Journal

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 1_000
MAX_SCANNED: Final = 1_000
"""Operations looked at for one page when a state is asked for; the journal has no index by state.
A page that hits this limit is short, and its `next` goes on from there."""
_SCAN_PAGE: Final = 200
_ENCODED_AT_ONCE: Final = 50
"""Encoding one operation takes some 20 us of the event loop that the streams run on."""

_OPERATION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadQuery(Exception):
    """The query cannot be understood; the text is for the caller and repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """What part of the journal is asked for."""

    limit: int = DEFAULT_LIMIT
    before: OperationId | None = None
    state: OperationState | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Operations, newest first, and where the next page goes on (None: there is no more)."""

    operations: list[Operation]
    next: OperationId | None


def read_operation_id(text: str) -> OperationId | None:
    """An id that the journal can be asked for; None for text that is none."""
    return OperationId(text) if _OPERATION_ID.fullmatch(text) else None


def read_listing_query(parameters: Iterable[tuple[str, str]]) -> ListingQuery:
    """The query's parameters, or a `BadQuery` that says which one is wrong."""
    given: dict[str, str] = {}
    for name, value in parameters:
        if name not in ("limit", "before", "state"):
            raise BadQuery("The parameters are limit, before and state.")
        if name in given:
            raise BadQuery(f"{name}: is given twice.")
        given[name] = value
    return ListingQuery(
        limit=_read_limit(given["limit"]) if "limit" in given else DEFAULT_LIMIT,
        before=_read_before(given["before"]) if "before" in given else None,
        state=_read_state(given["state"]) if "state" in given else None,
    )


async def list_page(journal: Journal, query: ListingQuery) -> Page:
    """One page of the journal, or a `BadQuery` when `before` is not in it."""
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
    for operation in page.operations:
        if encoded and len(encoded) % _ENCODED_AT_ONCE == 0:
            await asyncio.sleep(0)
        encoded.append(dump_json(build_operation_json(operation)))
    return f'{{"operations":[{",".join(encoded)}],"next":{dump_json(page.next)}}}'


async def _list_by_state(journal: Journal, query: ListingQuery, state: OperationState) -> Page:
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
