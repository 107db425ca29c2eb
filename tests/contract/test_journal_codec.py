"""The records' wire form: what it writes it reads, and what it cannot read it says."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from envoy_ext.adapters.journal_codec import UnreadableRecord, decode_record, encode_record, read_kind
from envoy_ext.adapters.operation_codec import build_operation_json
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.records import Record
from tests.support.record_strategies import records
from tests.support.records import begun, owned, whole_life

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "journal_v1.jsonl"
EVERY_KIND = {read_kind(record): record for record in [*whole_life("op_1", key_hash="key"), owned()]}


def changed(record: Record, **fields: object) -> str:
    return json.dumps(json.loads(encode_record(record)) | fields)


def without(record: Record, name: str) -> str:
    fields = json.loads(encode_record(record))
    del fields[name]
    return json.dumps(fields)


@given(records())
def test_every_record_is_read_as_it_was_written(record: Record) -> None:
    line = encode_record(record)
    assert line.isascii()
    assert "\n" not in line
    assert decode_record(line) == record
    assert decode_record(line.encode()) == record


def test_a_journal_of_version_1_is_read_and_written_byte_for_byte() -> None:
    lines = GOLDEN.read_text().splitlines()
    assert [encode_record(decode_record(line)) for line in lines] == lines
    assert {json.loads(line)["kind"] for line in lines} == set(EVERY_KIND) - {"ownership_taken"}


def test_a_change_of_owner_is_read_and_written_byte_for_byte() -> None:
    line = (
        '{"v":1,"kind":"ownership_taken","operation_id":"op_01JXSE0N4R1A2B3C4D5E6F7G8H",'
        '"at":1750000007.5,"owner":"edge-1:4711/3","token":2}'
    )
    assert encode_record(decode_record(line)) == line


def test_a_journal_of_version_1_tells_its_operations() -> None:
    told = [decode_record(line) for line in GOLDEN.read_text().splitlines()]
    shown = []
    for operation_id in dict.fromkeys(record.operation_id for record in told):
        operation = build_operation(record for record in told if record.operation_id == operation_id)
        assert operation is not None
        shown.append(build_operation_json(operation))
    interrupted, refused = shown
    assert (interrupted["state"], interrupted["phase"], interrupted["retry_budget"]) == (
        "failed",
        "decode",
        0,
    )
    assert interrupted["attempts"] == [
        {
            "attempt": 1,
            "attempt_id": "att_01JXSE0N4R1A2B3C4D5E6F7G8H",
            "replica": "a",
            "lease_expires_at": "2025-06-15T15:06:46.004Z",
            "outcome": "replica_died",
            "first_byte_at": None,
            "ended_at": "2025-06-15T15:06:40.350Z",
        },
        {
            "attempt": 2,
            "attempt_id": "att_01JXSE0NG3J4K5M6N7P8Q9R0ST",
            "replica": "b",
            "lease_expires_at": "2025-06-15T15:06:46.400Z",
            "outcome": "network_partition",
            "first_byte_at": "2025-06-15T15:06:40.520Z",
            "ended_at": "2025-06-15T15:06:42.251Z",
        },
    ]
    assert (refused["ending"], refused["request_id"], refused["attempts"]) == ("refused", "réq 😀", [])
    assert refused["error"] == {
        "code": "no_ready_replica",
        "reason": None,
        "status": 503,
        "partial_output": False,
    }


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_field_that_is_not_known_is_ignored(kind: str) -> None:
    record = EVERY_KIND[kind]
    assert decode_record(changed(record, added_by_a_later_release={"a": [1]})) == record


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_field_is_needed_and_has_one_type(kind: str) -> None:
    record = EVERY_KIND[kind]
    for name in json.loads(encode_record(record)):
        with pytest.raises(UnreadableRecord):
            decode_record(without(record, name))
        with pytest.raises(UnreadableRecord):
            decode_record(changed(record, **{name: ["SECRET"]}))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("operation_begun", "at", None),
        ("operation_begun", "at", True),
        ("operation_begun", "at", "1750000000"),
        ("operation_begun", "at", 10**400),
        ("operation_begun", "body_bytes", 1.5),
        ("operation_begun", "body_bytes", False),
        ("operation_begun", "stream", 1),
        ("operation_begun", "caller", None),
        ("attempt_ended", "outcome", "SECRET"),
        ("operation_ended", "ending", None),
        ("operation_ended", "reason", "SECRET"),
        ("operation_ended", "status", "200"),
        ("ownership_taken", "token", "SECRET"),
        ("ownership_taken", "token", True),
        ("ownership_taken", "owner", None),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name_and_not_shown(
    kind: str, name: str, value: object
) -> None:
    with pytest.raises(UnreadableRecord, match=rf"{kind} has no usable {name}: ") as caught:
        decode_record(changed(EVERY_KIND[kind], **{name: value}))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_time_that_is_no_number_is_neither_read_nor_written(number: str) -> None:
    line = encode_record(begun(at=7.5)).replace("7.5", number)
    with pytest.raises(UnreadableRecord, match="no usable at"):
        decode_record(line)
    with pytest.raises(ValueError, match=r"(?i)float"):
        encode_record(begun(at=float(number)))


def test_a_later_version_says_so() -> None:
    with pytest.raises(UnreadableRecord, match="version 2, this program reads up to 1"):
        decode_record(changed(begun(), v=2))


@pytest.mark.parametrize("version", [None, 0, -1, True, 1.0, "1"])
def test_a_record_without_a_proper_version_is_refused(version: object) -> None:
    with pytest.raises(UnreadableRecord, match="no version"):
        decode_record(changed(begun(), v=version))


@pytest.mark.parametrize("kind", ["operation_moved", "", None, 7, ["operation_begun"]])
def test_a_kind_that_is_not_known_is_refused(kind: object) -> None:
    with pytest.raises(UnreadableRecord, match="does not know"):
        decode_record(changed(begun(), kind=kind))


def test_every_cut_and_every_trailing_byte_makes_a_line_unreadable() -> None:
    line = encode_record(begun())
    for end in range(len(line)):
        with pytest.raises(UnreadableRecord):
            decode_record(line[:end])
    for trailing in ("}", "x", line):
        with pytest.raises(UnreadableRecord):
            decode_record(line + trailing)


@pytest.mark.parametrize(
    "line", ["[]", "null", "7", '"v"', "[" * 100_000, b"\xff\xfe{}", b'{"v":1,"kind":"\xff"}']
)
def test_what_is_no_record_at_all_is_refused(line: str | bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_record(line)


def test_an_unreadable_record_makes_the_journal_unavailable_to_its_callers() -> None:
    assert issubclass(UnreadableRecord, JournalUnavailable)


def test_a_run_of_a_job_says_so_and_what_is_none_is_written_as_before() -> None:
    assert "job_id" not in encode_record(begun())
    run = begun(job_id=OperationId("op_\udce9"))
    assert decode_record(encode_record(run)) == run
    with pytest.raises(UnreadableRecord, match="job_id"):
        decode_record(changed(run, job_id=7))
