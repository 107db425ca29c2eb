"""The `jobs` section: requests whose clients do not wait for the answer, and what is kept of them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Final, TypeVar

from pydantic import Field
from pydantic_core import PydanticCustomError

from envoy_ext.config.mistakes import Location
from envoy_ext.config.quantities import Duration, Retention, SizeBetween, parse_retention, parse_size
from envoy_ext.config.section import Section

LARGEST_VALUE: Final = "64MiB"
"""Of what a store keeps for one job: Redis serves nobody else while it takes a value, and SQLite nobody who
writes."""
DEFAULT_WAITING_BYTES: Final = 256 << 20
DEFAULT_WAITING_BYTES_IN_MEMORY: Final = 64 << 20
"""A quarter of what a journal in memory holds (`journal.max_bytes`): requests count there too."""

_WAITING_BYTES: Final = SizeBetween("1MiB", "64GiB")
_Number = TypeVar("_Number", int, float)


class Jobs(Section):
    """Without this section no request becomes a job, and none is stored."""

    max_waiting: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    """Jobs that have not ended, over all gateways of the store; what comes beyond it is refused."""
    max_waiting_bytes: Annotated[int, _WAITING_BYTES] | None = None
    """The same, by the bodies of their requests. None: 256 MiB, and 64 MiB in memory."""
    max_age: Duration = 3_600.0
    """How long after its submission a job may end at the latest, unless its client names a deadline."""
    keep_results: Retention = 86_400.0
    """How long after its end its result is kept."""
    max_result_bytes: Annotated[int, SizeBetween("1KiB", LARGEST_VALUE)] = 16 << 20
    """Of a result's headers and body. A job with a longer one has failed: its result cannot be given."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Jobs that one gateway runs at once in one pool. They take slots that nobody waits for."""


def find_jobs_conflicts(
    jobs: Mapping[object, object], journal: Mapping[object, object], limits: Mapping[object, object]
) -> Iterator[tuple[Location, str]]:
    """What the section does not go together with; whatever has the wrong form is passed over."""
    request_bytes = _read(limits, "max_request_bytes", parse_size, 16 << 20)
    if request_bytes is not None and request_bytes > parse_size(LARGEST_VALUE):
        yield (
            ("limits", "max_request_bytes"),
            f"more than {LARGEST_VALUE}, which is the most that a store keeps for one of the jobs: lower it, "
            "or remove jobs",
        )
    in_memory = journal.get("store") == "memory"
    default = DEFAULT_WAITING_BYTES_IN_MEMORY if in_memory else DEFAULT_WAITING_BYTES
    waiting_bytes = _read(jobs, "max_waiting_bytes", _WAITING_BYTES.parse, default)
    if waiting_bytes is not None and request_bytes is not None and request_bytes > waiting_bytes:
        at: Location = ("jobs", "max_waiting_bytes")
        if jobs.get("max_waiting_bytes") is None:
            at = ("limits", "max_request_bytes")
        yield at, "a request of limits.max_request_bytes would never find room in jobs.max_waiting_bytes"
    journal_bytes = _read(journal, "max_bytes", parse_size, None)
    if journal_bytes is not None and waiting_bytes is not None and waiting_bytes >= journal_bytes:
        yield (
            ("journal", "max_bytes"),
            "not more than jobs.max_waiting_bytes (256MiB, in memory 64MiB, unless set): jobs that wait "
            "would leave no room for what has ended",
        )
    kept_s = _read(jobs, "keep_results", parse_retention, 86_400.0)
    retention_s = _read(journal, "retention", parse_retention, 7 * 86_400.0)
    if kept_s is not None and retention_s is not None and kept_s > retention_s:
        if jobs.get("keep_results") is not None:
            yield (
                ("jobs", "keep_results"),
                "longer than journal.retention, by which a job goes with its result: lower this, or raise"
                " that",
            )
        else:
            message = "shorter than jobs.keep_results, which is 24h unless set: raise this, or lower that"
            yield ("journal", "retention"), message


def _read(
    section: Mapping[object, object],
    key: str,
    parse: Callable[[object], _Number],
    default: _Number | None,
) -> _Number | None:
    """A value as it will be understood; None where there is none, or one of a wrong form."""
    value = section.get(key)
    if value is None:
        return default
    try:
        return parse(value)
    except PydanticCustomError:
        return None
