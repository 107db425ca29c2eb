"""The wire form of journal records: one JSON object for each, `{"v":1,"kind":"operation_begun",...}`.

Journals outlive the program that wrote them, so reading is strict where guessing would lie and
lenient where an additive change may come: a kind or a version that is not known, a missing
field, a wrong type or an unknown word raises `UnreadableRecord`; a field that is not known, in a
known version, is ignored. Journals of every version ever written stay in `tests/golden/`.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NoReturn, TypeVar

from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import (
    AttemptId,
    ExchangeId,
    FencingToken,
    OperationId,
    PoolName,
    ReplicaId,
    SeatId,
)
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason, RungName
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
    OwnershipTaken,
    Record,
)

VERSION: Final = 1
_KINDS: Final[dict[type[Record], str]] = {
    OperationBegun: "operation_begun",
    OwnershipTaken: "ownership_taken",
    AttemptStarted: "attempt_started",
    FirstDeltaSent: "first_delta_sent",
    AttemptEnded: "attempt_ended",
    OperationEnded: "operation_ended",
}
_LATER_FIELDS: Final = ("ledger_id", "tool_call_id", "pool", "degraded", "job_id")
"""Left out where they say nothing: a record then is as releases before them wrote and read it."""
_FIELDS: Final = {
    kind: tuple((field.name, field.name in _LATER_FIELDS) for field in dataclasses.fields(kind))
    for kind in _KINDS
}
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_Word = TypeVar("_Word", bound=StrEnum)


class UnreadableRecord(JournalUnavailable):
    """A stored record this program cannot read; says where, never what the record holds."""


def read_kind(record: Record) -> str:
    """The record's kind as it is written."""
    return _KINDS[type(record)]


def encode_record(record: Record) -> str:
    """The record as one line of ASCII JSON. A number that JSON has no word for raises ValueError."""
    kind = type(record)
    envelope: dict[str, object] = {"v": VERSION, "kind": _KINDS[kind]}
    for name, later in _FIELDS[kind]:
        value = getattr(record, name)
        if value is not None or not later:
            envelope[name] = value
    return _encode(envelope)


def decode_record(text: str | bytes) -> Record:
    """The record that a line of a journal holds, or `UnreadableRecord`."""
    decoded = read_object(text, "a journal record", VERSION)
    kind = decoded.get("kind")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise UnreadableRecord("a journal record is of a kind this program does not know")
    return read(Fields(f"a journal record {kind}", decoded))


def read_object(text: str | bytes, what: str, up_to: int) -> dict[str, object]:
    """The object that a line holds, of a version that is known; or `UnreadableRecord`."""
    try:
        decoded: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{what} is not JSON") from error
    if not isinstance(decoded, dict):
        raise UnreadableRecord(f"{what} is not a JSON object")
    version = decoded.get("v")
    if type(version) is not int or version < 1:
        raise UnreadableRecord(f"{what} has no version")
    if version > up_to:
        raise UnreadableRecord(
            f"{what} has version {version}, this program reads up to {up_to}: "
            "it was written by a later release"
        )
    return decoded


class Fields:
    """The fields of one decoded object, read by name and by type; `what` it is stands in every refusal."""

    def __init__(self, what: str, values: dict[str, object]) -> None:
        self._what = what
        self._values = values

    def _fault(self, name: str, wanted: str) -> NoReturn:
        raise UnreadableRecord(f"{self._what} has no usable {name}: {wanted} expected")

    def _value(self, name: str, wanted: str) -> object:
        if name not in self._values:
            self._fault(name, wanted)
        return self._values[name]

    def is_null(self, name: str) -> bool:
        """Whether the field is there and null; a missing field is a fault found by its reader."""
        return name in self._values and self._values[name] is None

    def is_absent(self, name: str) -> bool:
        """Whether the field is null, or not there: as in records of releases that did not know it."""
        return self._values.get(name) is None

    def text(self, name: str) -> str:
        value = self._value(name, "a string")
        if not isinstance(value, str):
            self._fault(name, "a string")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self.is_null(name) else self.text(name)

    def flag(self, name: str) -> bool:
        value = self._value(name, "true or false")
        if not isinstance(value, bool):
            self._fault(name, "true or false")
        return value

    def count(self, name: str) -> int:
        value = self._value(name, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int):
            self._fault(name, "a whole number")
        return value

    def count_or_none(self, name: str) -> int | None:
        return None if self.is_null(name) else self.count(name)

    def time(self, name: str) -> float:
        value = self._value(name, "a finite number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fault(name, "a finite number")
        try:
            seconds = float(value)
        except OverflowError:
            self._fault(name, "a finite number")
        # json reads NaN and Infinity, and 1e999 becomes infinite.
        if not math.isfinite(seconds):
            self._fault(name, "a finite number")
        return seconds

    def time_or_none(self, name: str) -> float | None:
        return None if self.is_null(name) else self.time(name)

    def word(self, name: str, words: type[_Word]) -> _Word:
        text = self.text(name)
        try:
            return words(text)
        except ValueError:
            self._fault(name, f"one of the words of {words.__name__}")

    def word_or_none(self, name: str, words: type[_Word]) -> _Word | None:
        return None if self.is_null(name) else self.word(name, words)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._value(name, "a list of strings")
        if not isinstance(value, list):
            self._fault(name, "a list of strings")
        texts = tuple(one for one in value if isinstance(one, str))
        if len(texts) != len(value):
            self._fault(name, "a list of strings")
        return texts

    def words(self, name: str, words: type[_Word]) -> tuple[_Word, ...]:
        value = self._value(name, "a list of words")
        if not isinstance(value, list):
            self._fault(name, "a list of words")
        try:
            return tuple(words(one) for one in value)
        except (ValueError, TypeError):
            self._fault(name, f"a list of the words of {words.__name__}")

    def replica_or_none(self, name: str) -> ReplicaId | None:
        return None if self.is_null(name) else ReplicaId(self.text(name))


def _read_operation_begun(fields: Fields) -> OperationBegun:
    return OperationBegun(
        operation_id=OperationId(fields.text("operation_id")),
        exchange_id=ExchangeId(fields.text("exchange_id")),
        at=fields.time("at"),
        request_id=fields.text("request_id"),
        pool=PoolName(fields.text("pool")),
        path=fields.text("path"),
        model=fields.text_or_none("model"),
        stream=fields.flag("stream"),
        caller=fields.text("caller"),
        key_hash=fields.text_or_none("key_hash"),
        body_sha256=fields.text("body_sha256"),
        body_bytes=fields.count("body_bytes"),
        prompt_tokens_estimate=fields.count("prompt_tokens_estimate"),
        max_attempts=fields.count("max_attempts"),
        ledger_id=None if fields.is_absent("ledger_id") else OperationId(fields.text("ledger_id")),
        degraded=_read_degraded(fields),
        job_id=None if fields.is_absent("job_id") else OperationId(fields.text("job_id")),
    )


def _read_ownership_taken(fields: Fields) -> OwnershipTaken:
    return OwnershipTaken(
        operation_id=OperationId(fields.text("operation_id")),
        at=fields.time("at"),
        owner=SeatId(fields.text("owner")),
        token=FencingToken(fields.count("token")),
    )


def _read_attempt_started(fields: Fields) -> AttemptStarted:
    return AttemptStarted(
        operation_id=OperationId(fields.text("operation_id")),
        attempt_id=AttemptId(fields.text("attempt_id")),
        number=fields.count("number"),
        at=fields.time("at"),
        replica=fields.replica_or_none("replica"),
        lease_expires_at=fields.time("lease_expires_at"),
        pool=None if fields.is_absent("pool") else PoolName(fields.text("pool")),
        degraded=_read_degraded(fields),
    )


def _read_first_delta_sent(fields: Fields) -> FirstDeltaSent:
    return FirstDeltaSent(
        operation_id=OperationId(fields.text("operation_id")),
        attempt_id=AttemptId(fields.text("attempt_id")),
        at=fields.time("at"),
        replica=fields.replica_or_none("replica"),
    )


def _read_attempt_ended(fields: Fields) -> AttemptEnded:
    return AttemptEnded(
        operation_id=OperationId(fields.text("operation_id")),
        attempt_id=AttemptId(fields.text("attempt_id")),
        at=fields.time("at"),
        outcome=fields.word("outcome", AttemptOutcome),
        replica=fields.replica_or_none("replica"),
        first_byte_at=fields.time_or_none("first_byte_at"),
        detail=fields.text("detail"),
    )


def _read_operation_ended(fields: Fields) -> OperationEnded:
    return OperationEnded(
        operation_id=OperationId(fields.text("operation_id")),
        at=fields.time("at"),
        ending=fields.word("ending", Ending),
        state=fields.word("state", OperationState),
        phase=fields.word("phase", Phase),
        reason=fields.word_or_none("reason", Reason),
        error_code=fields.text_or_none("error_code"),
        status=fields.count_or_none("status"),
        delivered_deltas=fields.count("delivered_deltas"),
        delivered_output_tokens=fields.count("delivered_output_tokens"),
        delivered_bytes=fields.count("delivered_bytes"),
        model_revision=fields.text_or_none("model_revision"),
        tool_call_id=None if fields.is_absent("tool_call_id") else fields.text("tool_call_id"),
        degraded=_read_degraded(fields),
    )


def _read_degraded(fields: Fields) -> tuple[RungName, ...] | None:
    return None if fields.is_absent("degraded") else fields.words("degraded", RungName)


_READERS: Final[dict[str, Callable[[Fields], Record]]] = {
    _KINDS[OperationBegun]: _read_operation_begun,
    _KINDS[OwnershipTaken]: _read_ownership_taken,
    _KINDS[AttemptStarted]: _read_attempt_started,
    _KINDS[FirstDeltaSent]: _read_first_delta_sent,
    _KINDS[AttemptEnded]: _read_attempt_ended,
    _KINDS[OperationEnded]: _read_operation_ended,
}
