"""Jobs and their requests as stores write them: read as they were, or refused without being shown."""

import json
from dataclasses import replace

import pytest

from envoy_ext.adapters.job_codec import decode_job, decode_request, encode_head, encode_job
from envoy_ext.adapters.journal_codec import UnreadableRecord
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import ENDED, JobState
from tests.support.jobs import BODY, REQUEST, job_end, queued_job
from tests.support.records import START

QUEUED = queued_job(key_hash="key", data_class="secret")
RUNNING = replace(
    QUEUED,
    state=JobState.RUNNING,
    owner=SeatId("gw/\udce9"),
    token=FencingToken(3),
    run_ids=(OperationId("op_1"), OperationId("op_\x00")),
    cancel_requested_at=START + 1,
)
ENDS = [
    replace(RUNNING, state=state, end=job_end(state, error_code="queue_full", tool_call_id="call_1"))
    for state in sorted(ENDED)
]


@pytest.mark.parametrize("job", [QUEUED, RUNNING, *ENDS], ids=lambda job: job.state)
def test_a_job_is_read_as_it_was_written(job: object) -> None:
    line = encode_job(job)  # type: ignore[arg-type]
    assert line.isascii()
    assert "\n" not in line
    assert decode_job(line) == decode_job(line.encode()) == job


def test_a_job_of_this_release_is_read_and_written_byte_for_byte() -> None:
    line = (
        '{"v":1,"job_id":"op_1","number":7,"request_id":"req-1","caller":"c","path":"/v1/completions",'
        '"key_hash":null,"body_sha256":"ab","body_bytes":3,"pool":"chat","model":"m",'
        '"request_class":"default","data_class":null,"submitted_at":1750000000.0,"expires_at":1750003600.0,'
        '"ledger_id":"op_1","state":"failed","owner":"gw/1","token":2,"run_ids":["op_1"],'
        '"cancel_requested_at":null,"end":{"state":"failed","at":1750000005.0,"error_code":"queue_full",'
        '"status":null,"tool_call_id":null}}'
    )
    assert encode_job(decode_job(line)) == line


def changed(**fields: object) -> str:
    return json.dumps(json.loads(encode_job(RUNNING)) | fields)


def test_every_field_is_needed_and_has_one_type() -> None:
    fields = json.loads(encode_job(ENDS[0]))
    for name in fields:
        if name not in ("owner", "end"):
            with pytest.raises(UnreadableRecord):
                decode_job(json.dumps({key: value for key, value in fields.items() if key != name}))
        with pytest.raises(UnreadableRecord) as caught:
            decode_job(json.dumps(fields | {name: {"a": "SECRET"}}))
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2},
        {"state": "SECRET"},
        {"state": "failed"},
        {"end": json.loads(encode_job(ENDS[0]))["end"]},
        {"end": {"state": "queued", "at": 1.0, "error_code": None, "status": None, "tool_call_id": None}},
        {"end": []},
        {"token": True},
        {"submitted_at": "SECRET"},
    ],
)
def test_what_contradicts_itself_is_not_guessed_at(fields: dict[str, object]) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        decode_job(changed(**fields))
    assert "SECRET" not in str(caught.value)


def test_a_field_that_is_not_known_is_ignored() -> None:
    assert decode_job(changed(added_by_a_later_release={"a": [1]})) == RUNNING


def test_a_request_is_read_as_it_was_written() -> None:
    head = encode_head(REQUEST)
    assert "\n" not in head
    assert decode_request(head, REQUEST.body) == REQUEST
    for bad in ("{}", "x", '{"v":1,"path":"/","headers":[["a"]]}', '{"v":1,"path":"/"}', '{"v":2}'):
        with pytest.raises(UnreadableRecord):
            decode_request(bad, b"")


def test_nothing_shows_what_a_job_is_to_run() -> None:
    assert BODY.decode("latin-1")[:20] not in repr(REQUEST)
