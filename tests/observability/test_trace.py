"""What a trace of exchanges shows, and what it leaves out."""

import dataclasses
import json
import typing
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import events, records, step
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable, NotOwner
from envoy_ext.domain.events import AttemptBody, RequestArrived
from envoy_ext.domain.ids import AttemptId, FencingToken
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import Note
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.records import AttemptStarted, Record
from envoy_ext.domain.step import FailOver, ForwardBody, RespondLocally
from envoy_ext.observability.trace import SHOWN, WITHHELD, TraceLog, show_thing
from tests.support.exchange_builders import ReqChat
from tests.support.sidecar import DELTA, Sidecar, play_until_delta

ATTEMPT = AttemptId("att_1")


def list_types() -> list[type]:
    """Every event, record, reply and note, and what stands in them."""
    found: list[type] = []
    unions = (events.Event, records.Record, step.Reply, Note)
    waiting = [one for union in unions for one in typing.get_args(union)] + [RequestArrived]
    while waiting:
        one = waiting.pop()
        if one in found or not dataclasses.is_dataclass(one):
            continue
        found.append(one)
        for field in dataclasses.fields(one):
            if field.name not in WITHHELD:
                waiting += find_parts(typing.get_type_hints(one)[field.name])
    return found


def find_parts(hint: Any) -> list[Any]:
    return [part for each in typing.get_args(hint) for part in find_parts(each)] or [
        getattr(hint, "__supertype__", hint)
    ]


def test_each_text_of_the_core_is_shown_or_withheld_on_purpose() -> None:
    undecided = {
        f"{one.__name__}.{field.name}"
        for one in list_types()
        for field in dataclasses.fields(one)
        if field.name not in SHOWN | WITHHELD
        and any(
            isinstance(part, type) and issubclass(part, str) and not issubclass(part, Enum)
            for part in find_parts(typing.get_type_hints(one)[field.name])
        )
    }
    assert undecided == set()
    assert not SHOWN & WITHHELD


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        (
            AttemptBody(ATTEMPT, b"a secret", end=False),
            {"attempt_id": "att_1", "data_bytes": 8, "end": False},
        ),
        (ForwardBody(b"a secret", end=True), {"data_bytes": 8, "end": True, "trailers": False}),
        (FailOver(ATTEMPT, AttemptOutcome.REPLICA_DIED), {"attempt_id": "att_1", "outcome": "replica_died"}),
    ],
)
def test_bytes_are_counted_and_words_are_shown(thing: Any, shown: dict[str, Any]) -> None:
    assert show_thing(thing) == {"is": type(thing).__name__, **shown}


def test_what_a_client_sent_or_is_known_by_is_left_out() -> None:
    error = ClientError("invalid_request", "req-1", message="about a secret")
    assert "secret" not in json.dumps(show_thing(RespondLocally(error)))
    assert show_thing(RespondLocally(error))["error"]["code"] == "invalid_request"
    assert "llama" not in json.dumps(show_thing(ReqChat()))


async def test_an_exchange_is_followed_in_order_and_recorded_before_its_first_delta_is_sent() -> None:
    lines: list[str] = []
    times = iter(range(1000))
    await play_until_delta(Sidecar(trace=TraceLog(lines.append, lambda: float(next(times)))))
    told = [json.loads(line) for line in lines]
    names = [(one["kind"], one["is"]) for one in told]
    # On its way to the gate the request does not wait for its begin; the gate does.
    assert ("reply", "ForwardRequest") in names
    assert names.index(("recorded", "OperationBegun")) < names.index(("recorded", "AttemptStarted"))
    assert names.index(("event", "AttemptArrived")) < names.index(("recorded", "AttemptStarted"))
    assert names.index(("recorded", "AttemptStarted")) < names.index(("reply", "StartAttempt"))
    assert names.index(("recorded", "FirstDeltaSent")) < names.index(("reply", "ReleaseAttempt"))
    assert ("note", "FirstDelta") in names
    assert len({one["operation_id"] for one in told}) == 1
    assert [one["time"] for one in told] == sorted(one["time"] for one in told)
    assert DELTA.decode().strip() not in "".join(lines)


@pytest.mark.parametrize("refusal", [JournalUnavailable("the disk is full"), NotOwner("taken over")])
async def test_what_the_journal_did_not_take_is_not_called_recorded(refusal: Exception) -> None:
    class Full(MemoryJournal):
        async def append(
            self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
        ) -> None:
            if any(isinstance(record, AttemptStarted) for record in records):
                raise refusal
            await super().append(records, token, answer)

    lines: list[str] = []
    with pytest.raises(AssertionError):
        await play_until_delta(Sidecar(trace=TraceLog(lines.append), journal=Full()))
    told = [json.loads(line) for line in lines]
    assert ("event", "AttemptArrived") in [(one["kind"], one["is"]) for one in told]
    assert "AttemptStarted" not in [one["is"] for one in told if one["kind"] == "recorded"]
