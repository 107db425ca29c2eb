"""A request as a job keeps it, and that again as a request: what is stored, and what is read of it."""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.api import InvalidRequest, match_api, parse_request
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.job import Job, JobBounds, JobRequest
from envoy_ext.domain.outcomes import RungName
from envoy_ext.domain.rewriting import ask_whole, encode_body, find_whole_path
from envoy_ext.services.admission import Admitted, Arrival

_CONTENT_TYPE: Final = "content-type"
_CONTENT_ENCODING: Final = "content-encoding"
_JSON: Final = "application/json"
_DEGRADED: Final = "x-degraded"
"""Written by the gateway itself, where a ladder made the request a job."""
_SIDE_EFFECTS: Final = "x-side-effects"
"""The gateway's own, too: what the class was when the job was taken in holds, whatever becomes of it."""


@dataclass(frozen=True, slots=True)
class JobsPolicy:
    """`jobs`, as far as services decide with it. Times in seconds."""

    bounds: JobBounds
    concurrency: int
    """Runs at once of one pool, at this gateway."""
    max_age_s: float
    """From its submission, for a job without a deadline of its own."""
    max_request_bytes: int
    """What Envoy takes of a run: a body that is written anew may be longer than the client's packed one."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request that is to become a job: it is ours, readable, and may go where it wants to go."""

    arrival: Arrival
    """With its body."""
    admitted: Admitted
    job_id: OperationId
    key_hash: str | None
    after: OperationId | None = None
    """The operation before it under that key, which delivered nothing."""
    ledger_id: OperationId | None = None
    """Where that one's tool calls stand."""
    by_ladder: bool = False
    """Its client did not ask to be answered later."""


def build_job_request(arrival: Arrival, max_bytes: int, *, by_ladder: bool, side_effects: bool) -> JobRequest:
    """What is kept of a request. Its answer is kept too, so it is asked for in one piece.

    No credential is among it, and no header that only a replica would read.

    Raises:
        InvalidRequest: it cannot be written anew, or not in so many bytes.
    """
    path, body = arrival.path, arrival.body
    headers = [(_CONTENT_TYPE, arrival.content_type or _JSON)]
    if arrival.content_encoding:
        headers.append((_CONTENT_ENCODING, arrival.content_encoding))
    whole = ask_whole(parse_request(arrival.family, body, arrival.content_encoding, path=path).body)
    if whole is not None:
        written = encode_body(whole, max_bytes)
        if written is None:
            raise InvalidRequest("body: is too large, unpacked, to be run as a job; send it without stream")
        body, headers = written, [(_CONTENT_TYPE, _JSON)]
    if by_ladder:
        headers.append((_DEGRADED, RungName.JOB.value))
    if side_effects:
        headers.append((_SIDE_EFFECTS, "true"))
    return JobRequest(find_whole_path(path), tuple(headers), body)


def list_sent_headers(request: JobRequest) -> list[tuple[str, str]]:
    """Those of a kept request that go with it to a replica."""
    return [one for one in request.headers if one[0] in (_CONTENT_TYPE, _CONTENT_ENCODING)]


def read_given_up(request: JobRequest) -> tuple[RungName, ...]:
    """What was given up of a request when it became a job."""
    return tuple(RungName(value) for name, value in request.headers if name == _DEGRADED)


def had_side_effects(request: JobRequest) -> bool:
    """Whether its class acted on the world when the job was taken in."""
    return (_SIDE_EFFECTS, "true") in request.headers


def build_arrival(job: Job, request: JobRequest, wall_now: float) -> Arrival:
    """The request of a job's run, to be admitted as it would be at this moment.

    Raises:
        InvalidRequest: its path is none that is served.
    """
    family = match_api("POST", request.path)
    if family is None:
        raise InvalidRequest("this path is not served here")
    named = dict(request.headers)
    return Arrival(
        family=family,
        path=request.path,
        body=request.body,
        content_encoding=named.get(_CONTENT_ENCODING, ""),
        content_type=named.get(_CONTENT_TYPE, ""),
        request_id=job.request_id,
        caller=job.caller,
        idempotency_key=None,
        deadline_s=max(0.001, job.expires_at - wall_now),
        request_class=job.request_class,
        data_class=job.data_class,
        upstream_retry=False,
    )
