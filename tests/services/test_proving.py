"""One control call: which questions are asked of which engine, and what its answers prove."""

from dataclasses import dataclass, field

import pytest

from envoy_ext.domain.sample import Sample, ScrapeFailure, ScrapeTarget
from envoy_ext.services.proving import (
    CONTROL_PATHS,
    Declined,
    Failed,
    Passed,
    Proof,
    Question,
    ask_for_proof,
)

COMPLETIONS, CHAT, EMBEDDINGS = CONTROL_PATHS
Answer = bool | str
"""True, False, or the reason of a failure."""


@dataclass
class Engine:
    """What it answers to each question; `other` to those it does not name."""

    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    other: Answer = "unsupported"
    health: Answer = True
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def scrape(self, target: ScrapeTarget) -> Sample | ScrapeFailure:
        raise AssertionError("a control call reads no page")

    async def probe_health(self, target: ScrapeTarget) -> bool | ScrapeFailure:
        self.asked.append(("health", ""))
        return tell(self.health)

    async def probe_model(self, target: ScrapeTarget, model: str, api_path: str) -> bool | ScrapeFailure:
        self.asked.append((api_path, model))
        return tell(self.answers.get((api_path, model), self.other))


def tell(answer: Answer) -> bool | ScrapeFailure:
    return answer if isinstance(answer, bool) else ScrapeFailure(0.0, answer, f"said {answer}")


async def ask(engine: Engine, *models: str, first: Question | None = None) -> Proof | None:
    return await ask_for_proof(engine, ScrapeTarget("http://a"), models or ("m",), first)


@pytest.mark.parametrize("path", CONTROL_PATHS)
@pytest.mark.parametrize("others", ["unsupported", "declined", "denied", "bad_status"])
async def test_one_form_that_is_answered_is_proof_whatever_the_others_give(path: str, others: str) -> None:
    engine = Engine({(path, "m"): True}, other=others)
    assert await ask(engine) == Passed(Question(path, "m"))
    assert engine.asked == [(asked, "m") for asked in CONTROL_PATHS[: CONTROL_PATHS.index(path) + 1]]


async def test_an_embedding_model_is_asked_for_an_embedding_first_the_next_time() -> None:
    engine = Engine({(EMBEDDINGS, "m"): True}, other="declined")
    assert await ask(engine, first=Question(EMBEDDINGS, "m")) == Passed(Question(EMBEDDINGS, "m"))
    assert engine.asked == [(EMBEDDINGS, "m")]


async def test_of_several_names_the_first_that_the_engine_knows_is_proof() -> None:
    engine = Engine({(COMPLETIONS, "second"): True}, other="model_unknown")
    assert await ask(engine, "first", "second") == Passed(Question(COMPLETIONS, "second"))


async def test_another_name_is_not_tried_against_an_engine_that_does_not_speak_the_form() -> None:
    engine = Engine({(CHAT, "first"): True})
    assert await ask(engine, "first", "second") == Passed(Question(CHAT, "first"))
    assert engine.asked == [(COMPLETIONS, "first"), (CHAT, "first")]


async def test_an_engine_that_knows_no_name_of_the_pool_is_not_ready_whatever_its_health() -> None:
    """Every request of a client would get the same 404."""
    proof = await ask(Engine(other="model_unknown"), "first", "second")
    assert proof == Failed("said model_unknown")


@pytest.mark.parametrize("reason", ["unsupported", "declined", "denied"])
@pytest.mark.parametrize("health", [True, "unsupported", "denied"])
async def test_an_engine_that_declines_every_form_is_taken_at_its_servers_word(
    reason: str, health: Answer
) -> None:
    engine = Engine(other=reason, health=health)
    assert await ask(engine) == Declined(f"said {reason}")
    assert engine.asked[-1] == ("health", "")


@pytest.mark.parametrize("health", ["bad_status", "loading", "refused", "timeout"])
async def test_an_engine_that_declines_every_form_and_is_not_well_proves_nothing(health: str) -> None:
    proof = await ask(Engine(other="declined", health=health))
    assert proof == Failed(f"its health page: said {health}")


@pytest.mark.parametrize("reason", ["bad_status", "too_large"])
async def test_a_failure_in_one_form_is_not_made_good_by_health(reason: str) -> None:
    engine = Engine({(COMPLETIONS, "m"): reason}, other="unsupported")
    assert await ask(engine) == Failed(f"said {reason}")
    assert ("health", "") not in engine.asked


@pytest.mark.parametrize("reason", ["timeout", "busy", "refused", "reset", "loading"])
async def test_what_every_question_would_get_at_the_moment_is_asked_once(reason: str) -> None:
    engine = Engine(other=reason)
    unanswered = reason in ("timeout", "busy")
    assert await ask(engine, "first", "second") == Failed(f"said {reason}", unanswered)
    assert len(engine.asked) == 1


async def test_time_that_this_process_did_not_have_says_nothing_of_the_model() -> None:
    assert await ask(Engine(other="starved")) is None
    assert await ask(Engine(other="declined", health="starved")) is None


async def test_a_200_without_a_token_is_no_proof_and_no_end_of_the_asking() -> None:
    assert await ask(Engine(other=False)) == Failed("a 200 without a token")
    assert await ask(Engine({(CHAT, "m"): True}, other=False)) == Passed(Question(CHAT, "m"))
