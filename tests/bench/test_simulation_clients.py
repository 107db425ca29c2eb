"""The clients of the simulation retry as OpenAI's own SDK does."""

from random import Random

import httpx2
import openai
import pytest
from openai._models import FinalRequestOptions

from bench.simulation.clients import Clients, compute_retry_delay, may_retry
from bench.simulation.events import Events
from bench.simulation.request import Request
from bench.simulation.tally import Tally
from bench.simulation.workload import ANSWER_TOKENS, KINDS, PROMPT_TOKENS, Bursts, Kind, compute_mean, draw

CHAT, APP, _ = KINDS
SDK = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9")


def answer(status: int, retry_after: float | None, should_retry: bool | None = None) -> httpx2.Response:
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    if should_retry is not None:
        headers["x-should-retry"] = str(should_retry).lower()
    return httpx2.Response(status, headers=headers)


@pytest.mark.parametrize("status", [400, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("retry_after", [None, 1.0, 30.0, 120.0, 121.0])
@pytest.mark.parametrize("forbidden", [True, False])
def test_what_the_sdk_retries(status: int, retry_after: float | None, forbidden: bool) -> None:
    real = SDK._should_retry(answer(status, retry_after, False if forbidden else None))
    assert may_retry(status, retry_after, sdk_retries=not forbidden) is real


@pytest.mark.parametrize("retry_after", [None, 0.0, 1.0, 30.0, 120.0, 121.0])
@pytest.mark.parametrize("retries", [0, 1])
def test_how_long_the_sdk_waits(retries: int, retry_after: float | None) -> None:
    options = FinalRequestOptions(method="post", url="/")
    headers = answer(503, retry_after).headers
    real = [
        SDK._calculate_retry_timeout(openai.DEFAULT_MAX_RETRIES - retries, options, headers)
        for _ in range(300)
    ]
    source = Random(1)
    ours = [compute_retry_delay(retries, retry_after, source) for _ in range(300)]
    for of in (min, max):
        assert of(ours) == pytest.approx(of(real), rel=0.02)


class Script:
    """A gateway that answers as it is told, one word for each request, and then not at all."""

    def __init__(self, events: Events, words: str) -> None:
        self.events = events
        self.words = list(words)
        self.sent: list[float] = []
        self.left: list[float] = []

    def receive(self, request: Request) -> None:
        self.sent.append(self.events.time)
        match self.words.pop(0) if self.words else "silence":
            case "a":
                self.events.after(1.0, request.answered)
            case "r":
                request.refused(503, 10.0)
            case "x":
                request.refused(503, None, sdk_retries=False)
            case "b":
                request.first_word()
                self.events.after(30.0, request.broken)

    def leave(self, request: Request) -> None:
        self.left.append(self.events.time)


def ask(kind: Kind, words: str) -> tuple[Script, Tally]:
    events = Events()
    tally = Tally(events, (0.0, 10_000.0))
    clients = Clients(events, Random(3), tally)
    script = clients.gateway = Script(events, words)
    clients.want(kind, "somebody", 100, 100)
    events.run(5_000.0)
    assert clients.open == 0
    return script, tally


def test_an_answer_in_time_is_good_and_counted_once() -> None:
    script, tally = ask(APP, "a")
    assert (len(script.sent), tally.totals["good"], tally.totals["failed"]) == (1, 1, 0)


def test_a_refusal_is_repeated_when_it_says_and_three_times_in_all() -> None:
    script, tally = ask(APP, "rrr")
    assert script.sent == [0.0, 10.0, 20.0]
    assert tally.totals["failed"] == 1


def test_what_must_not_be_retried_is_not() -> None:
    script, _ = ask(APP, "x")
    assert len(script.sent) == 1


def test_an_answer_after_the_deadline_is_late() -> None:
    # Two timeouts of 60 s, and then an answer at 122 s: its deadline was 120 s.
    script, tally = ask(APP, "ssa")
    assert len(script.left) == 2
    assert (tally.totals["late"], tally.totals["good"]) == (1, 0)


def test_a_person_who_sees_nothing_leaves_and_asks_again_twice() -> None:
    script, tally = ask(CHAT, "")
    assert len(script.sent) == len(script.left) == 3
    assert script.left[0] >= CHAT.patience_s[0]
    assert tally.totals["failed"] == 1


def test_a_person_who_reads_is_patient_and_a_broken_stream_is_asked_for_again() -> None:
    script, tally = ask(CHAT, "ba")
    assert script.left == []
    assert len(script.sent) == 2
    assert tally.totals["good"] == 1


def test_lengths_are_those_of_the_trace() -> None:
    """The means of the 19,366 requests are 1154.7 and 211.1 tokens."""
    assert compute_mean(PROMPT_TOKENS) == pytest.approx(1154.7, rel=0.05)
    assert compute_mean(ANSWER_TOKENS) == pytest.approx(211.1, rel=0.10)
    source = Random(1)
    drawn = [draw(ANSWER_TOKENS, source) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(compute_mean(ANSWER_TOKENS), rel=0.02)
    assert sum(one <= 129 for one in drawn) / len(drawn) == pytest.approx(0.5, abs=0.02)


def test_bursts_leave_the_mean_as_it_is() -> None:
    bursts = Bursts()
    part = bursts.high_s / (bursts.high_s + bursts.calm_s)
    assert part * bursts.high + (1 - part) * bursts.calm == pytest.approx(1.0)
