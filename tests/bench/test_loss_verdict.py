"""The judge of a loss under load: each broken promise is called one, and a run that kept all is let be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.loss.evidence import Evidence, Generation, Marks, Try, end_with_their_engine, read_log
from bench.loss.shape import Shape
from bench.loss.table import build_rows
from bench.loss.verdict import find_peak, find_recovery, judge, split_attempts

SHAPE = Shape(slots=2, deadline_s=4.0, retry_min=1, retry_percent=10, recovered_s=5.0)
HOLD_S = 1.0


def build_run() -> Evidence:
    """Two a second of one replica with two slots; ten seconds of each phase, and one refusal a second while
    one is lost."""
    run = Evidence(SHAPE, Marks(0.0, 10.0, 20.0, 30.0, 40.0), "a", capacity=2.0)
    for second in range(40):
        for replica, slot in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
            lost = replica == "b" and (second < 10 or 20 <= second < 30)
            if not lost:
                add_answer(run, replica, f"r{second}-{replica}{slot}", float(second))
        if 20 <= second < 30:
            refuse(run, second + 0.5)
    return run


def add_answer(run: Evidence, replica: str, request_id: str, at: float) -> None:
    run.tries.append(Try(request_id, len(run.tries), "raw", at, at + HOLD_S, 200, whole=True, tokens=20))
    run.generations.append(Generation(replica, request_id, at, at + HOLD_S, "done", 20))


def refuse(run: Evidence, at: float, code: str = "queue_full", status: int = 429) -> Try:
    one = Try(f"shed-{at}", len(run.tries), "sdk", at, at + 0.01, status, code, "3")
    run.tries.append(one)
    return one


def find(run: Evidence, what: Callable[[Try], bool]) -> Try:
    return next(one for one in run.tries if what(one))


def find_lost(run: Evidence) -> Try:
    return find(run, lambda one: one.whole and one.sent_at == 22.0)


def find_shed(run: Evidence) -> Try:
    return find(run, lambda one: one.status == 429)


def list_broken(run: Evidence) -> list[str]:
    return [one.text for one in judge(run) if not one.kept]


def test_a_good_run_keeps_every_promise() -> None:
    run = build_run()
    assert list_broken(run) == []
    assert len(judge(run)) == 14
    assert len(build_rows("kill", run)) == 4


def late_answers(run: Evidence) -> None:
    for one in run.tries:
        if one.whole and one.sent_at in (22.0, 23.0, 24.0):
            one.ended_at = one.sent_at + SHAPE.deadline_s + 0.1


def wasted_tokens(run: Evidence) -> None:
    for one in run.generations:
        if 20 <= one.started_at < 22:
            one.tokens = 400
    for one in run.tries:
        if 20 <= one.sent_at < 22:
            one.whole = False


def too_many_first_attempts(run: Evidence) -> None:
    for number in range(1 + SHAPE.on_their_way):
        add_answer(run, "a", f"more-{number}", 24.0)


def too_many_at_once(run: Evidence) -> None:
    for number in range(2):
        run.generations.append(Generation("a", f"r24-a{number}", 24.1, 24.9, "done", 20))


def slower_replica(run: Evidence) -> None:
    for one in run.generations:
        if one.replica == "a" and 20 <= one.started_at < 30:
            assert one.ended_at is not None
            one.ended_at -= 0.5  # so that nothing overlaps: it is the times before that are better
        elif one.replica == "a" and one.started_at < 10:
            assert one.ended_at is not None
            one.ended_at -= 0.9


def replays_everywhere(run: Evidence) -> None:
    for replica in ("b", "b"):
        run.generations.append(Generation(replica, "r22-a0", 22.1, 22.9, "done", 20))


def no_retry_after(run: Evidence) -> None:
    find_shed(run).retry_after = None


def retry_after_too_long(run: Evidence) -> None:
    find_shed(run).retry_after = "31"


def advice_not_to_come_back(run: Evidence) -> None:
    find_shed(run).should_retry = "false"


def wrong_status(run: Evidence) -> None:
    find_shed(run).status = 503


def unheard_of_code(run: Evidence) -> None:
    find_shed(run).code = "oops"


def a_deadline_to_come_back_from(run: Evidence) -> None:
    refuse(run, 21.0, "deadline_exceeded", 504)


def dear_refusals(run: Evidence) -> None:
    for one in run.tries:
        if one.status == 429:
            one.ended_at = one.sent_at + HOLD_S + 0.1


def a_hang(run: Evidence) -> None:
    refuse(run, 21.0).ended_at = 27.0


def a_refused_one_is_computed(run: Evidence) -> None:
    shed = find_shed(run)
    run.generations.append(Generation("b", shed.request_id, shed.sent_at, shed.ended_at, "done", 0))


def a_generation_of_nobody(run: Evidence) -> None:
    run.generations.append(Generation("b", "who", 5.0, 5.1, "done", 0))


def three_attempts(run: Evidence) -> None:
    for at in (23.2, 23.4):
        run.generations.append(Generation("b", "r22-a0", at, at + 0.1, "done", 0))


def many_attempts(run: Evidence) -> None:
    for number in range(10):
        add_answer(run, "b", f"multiplied-{number}", 20.0 + number * 0.9)


def no_recovery(run: Evidence) -> None:
    for second in range(30, 40):
        refuse(run, second + 0.5)


def something_left(run: Evidence) -> None:
    run.inflight = 1


def a_bug(run: Evidence) -> None:
    run.bugs = 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (late_answers, "answers in time are at least"),
        (wasted_tokens, "of the tokens that it computes"),
        (too_many_first_attempts, "never more first attempts"),
        (too_many_at_once, "never more of all attempts"),
        (slower_replica, "its own time for an answer"),
        (replays_everywhere, "never more replays at once"),
        (no_retry_after, "every refusal says"),
        (retry_after_too_long, "every refusal says"),
        (advice_not_to_come_back, "every refusal says"),
        (wrong_status, "every refusal says"),
        (unheard_of_code, "every refusal says"),
        (a_deadline_to_come_back_from, "every refusal says"),
        (dear_refusals, "while one is lost, the median refusal"),
        (a_hang, "nobody hangs"),
        (a_refused_one_is_computed, "of what is refused"),
        (a_generation_of_nobody, "in every second"),
        (three_attempts, "in every second"),
        (many_attempts, "however often clients repeat"),
        (no_recovery, "all calls are answered again"),
        (something_left, "nothing is left behind"),
        (a_bug, "nothing is left behind"),
    ],
)
def test_each_broken_promise_is_called_one(spoil: Callable[[Evidence], None], words: str) -> None:
    run = build_run()
    spoil(run)
    assert any(text.startswith(words) or words in text for text in list_broken(run)), list_broken(run)


def test_an_attempt_behind_one_that_found_nobody_is_a_replay() -> None:
    run = build_run()
    find_lost(run).attempts = 2
    first, again = split_attempts(run)
    assert [one.request_id for one in again] == [find_lost(run).request_id]
    assert len(first) == len(run.generations) - 1


def test_one_that_ends_as_another_begins_makes_room_for_it() -> None:
    assert find_peak([(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)]) == 2
    assert find_peak([]) == 0


def test_the_pool_has_recovered_when_nothing_is_refused_any_more() -> None:
    run = build_run()
    assert find_recovery(run) == 0.0
    refuse(run, 33.5)
    assert find_recovery(run) == 4.0


def test_an_engines_log_tells_what_it_computed_and_leaves_out_what_nobody_asked_for(tmp_path: Path) -> None:
    lines = [
        '{"time": 1.0, "replica": "b", "request_id": "r1", "generation": 1, "what": "start"}',
        '{"time": 1.0, "replica": "b", "request_id": null, "generation": 2, "what": "start"}',
        '{"time": 1.1, "replica": "b", "request_id": "r1", "generation": 1, "what": "token", "index": 0}',
        '{"time": 1.1, "replica": "b", "request_id": "r1", "generation": 1, "what": "chunk", "data": ""}',
        '{"time": 1.2, "replica": "b", "request_id": "r2", "generation": 3, "what": "start"}',
        '{"time": 1.3, "replica": "b", "request_id": "r1", "generation": 1, "what": "end", "ended": "done"}',
        '{"time": 9.0, "replica": "b", "request_id": "r4", "generation": null, "what": "end", "ended": "x"}',
    ]
    log = tmp_path / "b.jsonl"
    log.write_text("\n".join(lines) + "\n")
    found = read_log(log)
    end_with_their_engine(found, "b", 5.0)
    assert found == [
        Generation("b", "r1", 1.0, 1.3, "done", 1),
        Generation("b", "r2", 1.2, 5.0, "killed", 0),
    ]
