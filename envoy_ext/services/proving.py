"""One control call: the model is asked for a token, in the forms that its engine may speak.

Three forms are tried, and every name of the model that the engine does not know is followed by the
next one. An engine that declines all of them, by its configuration and not by a failure, cannot be
proven by a token: then it is enough that its server is well by its own word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.sample import ScrapeFailure, ScrapeTarget
from envoy_ext.ports import ScrapeSource

CONTROL_PATHS: Final = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
"""Asked in this order: the first needs no chat template, the second is all that some servers have, and
the third is all that an embedding model answers."""

DECLINES: Final = frozenset({"denied", "declined", "unsupported"})
"""The engine is well and does not do what was asked: not for us, not in this form, not at this path."""
_NO_TOKEN: Final = ScrapeFailure(0.0, "no_token", "a 200 without a token")
_OF_THE_MOMENT: Final = frozenset({"timeout", "busy", "refused", "reset", "unreachable", "loading"})
"""What the same engine would say to any other question of ours at the same moment."""
_UNANSWERED: Final = frozenset({"timeout", "busy"})


@dataclass(frozen=True, slots=True)
class Question:
    """A form of the control call that was answered; the next one can start with it."""

    path: str
    model: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The model answered."""

    question: Question


@dataclass(frozen=True, slots=True)
class Declined:
    """The engine answers none of our questions, and nothing says that it is not well."""

    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer came of the model."""

    detail: str
    unanswered: bool = False
    """For want of time, or of room: a model that is busy looks the same."""


Proof = Passed | Declined | Failed


async def ask_for_proof(
    source: ScrapeSource, target: ScrapeTarget, models: Sequence[str], first: Question | None = None
) -> Proof | None:
    """Ask until an answer settles it. `first` is the form that was answered last time.

    None: the time ran out while this process did not run, which says nothing of the model.
    """
    failures: list[ScrapeFailure] = []
    questions = [Question(path, model) for path in CONTROL_PATHS for model in models]
    skipped: str | None = None
    for question in [first, *questions] if first is not None else questions:
        if question.path == skipped:
            continue
        answer = await source.probe_model(target, question.model, question.path)
        if answer is True:
            return Passed(question)
        failure = answer if isinstance(answer, ScrapeFailure) else _NO_TOKEN
        if failure.reason == "starved":
            return None
        if failure.reason in _OF_THE_MOMENT:
            return Failed(_describe(failure), failure.reason in _UNANSWERED)
        failures.append(failure)
        # Another name helps only against an engine that does not know this one.
        skipped = None if failure.reason == "model_unknown" else question.path
    undecided = [failure for failure in failures if failure.reason not in DECLINES]
    if undecided:
        return Failed(_describe(undecided[0]))
    return await _ask_health(source, target, failures[0])


async def _ask_health(source: ScrapeSource, target: ScrapeTarget, declined: ScrapeFailure) -> Proof | None:
    """What the server says of itself. One that has no such page, or not for us, says nothing bad."""
    health = await source.probe_health(target)
    if isinstance(health, ScrapeFailure) and health.reason == "starved":
        return None
    if isinstance(health, ScrapeFailure) and health.reason not in DECLINES:
        return Failed(f"its health page: {_describe(health)}")
    return Declined(_describe(declined))


def _describe(failure: ScrapeFailure) -> str:
    return failure.detail or failure.reason
