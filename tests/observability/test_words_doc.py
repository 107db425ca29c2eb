"""docs/requests.md and docs/errors.md name every word that a client or the journal can say."""

import re
from pathlib import Path

import pytest

from envoy_ext.domain.client_errors import CODES
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason

DOCS = Path(__file__).parents[2] / "docs"


def read_words(document: str, head: str) -> list[str]:
    """The first cells of the table below a head line."""
    lines = (DOCS / document).read_text().split(head, 1)[1].splitlines()[2:]
    rows = lines[: next(n for n, line in enumerate([*lines, ""]) if not line.startswith("|"))]
    return [line.split("`")[1] for line in rows]


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("| state | means |", OperationState),
        ("| phase | means |", Phase),
        ("| ending | means |", Ending),
        ("| outcome | an attempt |", AttemptOutcome),
    ],
)
def test_every_word_of_the_journal_has_its_row(
    head: str, words: type[OperationState] | type[Phase] | type[Ending] | type[AttemptOutcome]
) -> None:
    assert read_words("requests.md", head) == [word.value for word in words]


def test_every_error_code_has_its_row_with_its_status() -> None:
    text = (DOCS / "errors.md").read_text()
    assert sorted(read_words("errors.md", "| code | HTTP | when | hint |")) == sorted(CODES)
    for code, shape in CODES.items():
        status = "in the stream" if code == "upstream_decode_interrupted" else str(shape.status)
        assert re.search(rf"^\| `{code}` \| {status}", text, re.MULTILINE), code


def test_every_reason_that_can_be_told_is_named() -> None:
    listed = (DOCS / "errors.md").read_text().split("`reason` says", 1)[1].split("when there is", 1)[0]
    named = set(re.findall(r"`(\w+)`", listed)) - {"null"}
    assert named == {reason.value for reason in Reason}
