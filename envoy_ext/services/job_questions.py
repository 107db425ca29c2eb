"""What the paths below `/v1/operations` ask of a job."""

from enum import Enum, auto
from typing import Final

_OPERATIONS: Final = "/v1/operations"


class JobQuestion(Enum):
    """What may be asked of a job, beside what any operation tells of itself."""

    RESULT = auto()
    CANCEL = auto()


def read_job_question(method: str, path: str) -> tuple[JobQuestion, str] | None:
    """The id in `GET /v1/operations/{id}/result`, in `POST …/cancel` and in `DELETE /v1/operations/{id}`."""
    place, _, last = path.partition("?")[0].rpartition("/")
    if method == "DELETE" and place == _OPERATIONS and last:
        return JobQuestion.CANCEL, last
    above, _, operation_id = place.rpartition("/")
    if above != _OPERATIONS or not operation_id:
        return None
    if method in ("GET", "HEAD") and last == "result":
        return JobQuestion.RESULT, operation_id
    return (JobQuestion.CANCEL, operation_id) if (method, last) == ("POST", "cancel") else None
