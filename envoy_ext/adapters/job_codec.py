"""Jobs as stores write them: lines of ASCII JSON, without their requests.

The reader is as strict, and as lenient, as that of `journal_codec`.
"""

import dataclasses
import json
import math
from typing import Final

from envoy_ext.adapters import tool_call_codec
from envoy_ext.adapters.journal_codec import Fields, UnreadableRecord, read_object
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId
from envoy_ext.domain.job import ENDED, Job, JobEnd, JobRequest, JobState, NewJob

VERSION: Final = 1
_WHAT: Final = "a job"
_REQUEST: Final = "the request of a job"


def encode_job(job: Job) -> str:
    """The job as one line. A number that JSON has no word for raises ValueError."""
    return json.dumps({"v": VERSION, **dataclasses.asdict(job)}, separators=(",", ":"), allow_nan=False)


def decode_job(text: str | bytes) -> Job:
    """The job that a line holds, or `UnreadableRecord`."""
    decoded = read_object(text, _WHAT, VERSION)
    fields = Fields(_WHAT, decoded)
    job = Job(
        job_id=OperationId(fields.text("job_id")),
        number=fields.count("number"),
        request_id=fields.text("request_id"),
        caller=fields.text("caller"),
        path=fields.text("path"),
        key_hash=fields.text_or_none("key_hash"),
        body_sha256=fields.text("body_sha256"),
        body_bytes=fields.count("body_bytes"),
        pool=PoolName(fields.text("pool")),
        model=fields.text_or_none("model"),
        request_class=fields.text("request_class"),
        data_class=fields.text_or_none("data_class"),
        submitted_at=fields.time("submitted_at"),
        expires_at=fields.time("expires_at"),
        ledger_id=OperationId(fields.text("ledger_id")),
        state=fields.word("state", JobState),
        owner=None if fields.is_absent("owner") else SeatId(fields.text("owner")),
        token=FencingToken(fields.count("token")),
        run_ids=tuple(OperationId(one) for one in fields.texts("run_ids")),
        cancel_requested_at=fields.time_or_none("cancel_requested_at"),
        end=None if fields.is_absent("end") else _read_end(decoded["end"]),
    )
    if (job.end.state if job.end else None) != (job.state if job.state in ENDED else None):
        raise UnreadableRecord(f"{_WHAT} is {job.state}, and its end says something else")
    return job


def refuse_unwritable(new: NewJob) -> None:
    """A job with a number that JSON has no word for raises ValueError, before anything is written."""
    refuse_time(new.submitted_at)
    refuse_time(new.expires_at)


def refuse_time(at: float) -> None:
    """A time that JSON has no word for raises ValueError."""
    if not math.isfinite(at):
        raise ValueError("not a finite float: a job has no such time")


def _read_end(value: object) -> JobEnd:
    what = f"the end of {_WHAT}"
    if not isinstance(value, dict):
        raise UnreadableRecord(f"{what} is no JSON object")
    fields = Fields(what, value)
    try:
        return JobEnd(
            state=fields.word("state", JobState),
            at=fields.time("at"),
            error_code=fields.text_or_none("error_code"),
            status=fields.count_or_none("status"),
            tool_call_id=fields.text_or_none("tool_call_id"),
        )
    except ImpossibleEvent as odd:
        raise UnreadableRecord(f"{what} does not end it") from odd


def encode_head(request: JobRequest) -> str:
    """All of a request but its body, as one line."""
    head = {"v": VERSION, "path": request.path, "headers": request.headers}
    return json.dumps(head, separators=(",", ":"))


def decode_request(head: str | bytes, body: bytes) -> JobRequest:
    """The request of this head, or `UnreadableRecord`."""
    decoded = read_object(head, _REQUEST, VERSION)
    path = Fields(_REQUEST, decoded).text("path")
    return JobRequest(path, tool_call_codec.read_headers(decoded.get("headers")), body)
