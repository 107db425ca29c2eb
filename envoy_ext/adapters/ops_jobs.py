"""`GET /v1/jobs`: what may be asked, and the page of the store's jobs that answers it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envoy_ext.adapters.operation_codec import build_job_operator_json
from envoy_ext.adapters.ops_operations import DEFAULT_LIMIT, MAX_LIMIT, BadQuery
from envoy_ext.domain.job import UNFINISHED, JobState
from envoy_ext.ports import JobStore

_LONGEST_NUMBER: Final = 18


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """Which jobs are asked for."""

    states: frozenset[JobState] = UNFINISHED
    limit: int = DEFAULT_LIMIT
    after: int = 0
    """The number of a job: those that were submitted later."""


def read_jobs_query(parameters: Iterable[tuple[str, str]]) -> JobsQuery:
    """The query's parameters, or a `BadQuery` that says which one is wrong."""
    given: dict[str, str] = {}
    for name, value in parameters:
        if name not in ("state", "limit", "after"):
            raise BadQuery("The parameters are state, limit and after.")
        if name in given:
            raise BadQuery(f"{name}: is given twice.")
        given[name] = value
    return JobsQuery(
        _read_states(given["state"]) if "state" in given else UNFINISHED,
        _read_number("limit", given["limit"], MAX_LIMIT) if "limit" in given else DEFAULT_LIMIT,
        _read_number("after", given["after"]) if "after" in given else 0,
    )


async def list_jobs_page(store: JobStore, query: JobsQuery) -> dict[str, object]:
    """A page, and the number behind which the next one goes on; null: there is no more."""
    found = await store.list_jobs(query.states, query.limit + 1, query.after)
    page = found[: query.limit]
    return {
        "jobs": [build_job_operator_json(job) for job in page],
        "next": page[-1].number if len(found) > query.limit else None,
    }


def _read_states(text: str) -> frozenset[JobState]:
    try:
        return frozenset(JobState(one) for one in text.split(","))
    except ValueError:
        raise BadQuery(f"state: must be of {', '.join(JobState)}, with commas between them.") from None


def _read_number(name: str, text: str, most: int | None = None) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    if is_number and (most is None or 1 <= int(text) <= most):
        return int(text)
    bounds = "" if most is None else f" from 1 to {most}"
    raise BadQuery(f"{name}: must be a whole number{bounds}.")
