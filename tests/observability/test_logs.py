"""The log: one line for each exchange, and nothing in any line that is not for it."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.notes import (
    BoundaryHeld,
    ReplayRefused,
    StoreBack,
    StoreLost,
    ToolCallDecided,
    ToolCallEnded,
)
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.tool_calls import CallState
from envoy_ext.domain.tool_errors import CallOutcome
from envoy_ext.observability.log_format import MAX_TEXT_CHARS, JsonFormatter
from envoy_ext.observability.logs import LoggingObserver, configure_logging
from tests.support.notes import KINDS, SAMPLES, attempt_finished, exchange_ended

SECRET = "my prompt about the secret plan"


class Lines(logging.Handler):
    """Keeps what it is given, as the dicts that the lines hold."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.texts]


@pytest.fixture
def logger() -> logging.Logger:
    """A logger that no other test and no root handler sees."""
    logger = logging.Logger("envoy_ext.test", logging.DEBUG)
    logger.addHandler(Lines())
    return logger


@pytest.fixture
def lines(logger: logging.Logger) -> Lines:
    handler = logger.handlers[0]
    assert isinstance(handler, Lines)
    return handler


@pytest.fixture
def observer(logger: logging.Logger) -> LoggingObserver:
    return LoggingObserver(logger)


def one(lines: Lines) -> dict[str, Any]:
    (event,) = lines.events
    return event


def catch(broken: Callable[[], object]) -> Exception:
    try:
        broken()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_note_is_either_logged_or_left_to_the_metrics(
    kind: type, observer: LoggingObserver, lines: Lines
) -> None:
    observer.note(SAMPLES[kind])
    expected = {
        "ExchangeEnded": ["exchange_ended"],
        "AttemptFinished": ["attempt_failed"],
        "ReplayStarted": ["replay_started"],
        "ReplayRefused": ["replay_refused"],
        "BoundaryHeld": ["data_class_forbidden"],
        "HandOffFailed": ["hand_off_failed"],
        "JobEnded": ["job_ended"],
        "JobSubmitted": ["job_submitted"],
        "AnswerReplayed": ["answer_replayed"],
        "StoreLost": ["store_lost"],
        "StoreBack": ["store_back"],
        "ToolCallDecided": ["tool_call_refused"],
        "ToolCallEnded": ["tool_call_outcome_unknown"],
    }
    assert [event["event"] for event in lines.events] == expected.get(kind.__name__, [])


def test_an_exchange_ends_with_one_line_that_holds_its_ids_and_its_ending(
    observer: LoggingObserver, lines: Lines
) -> None:
    observer.note(exchange_ended())
    event = one(lines)
    assert event.pop("ts").endswith("Z")
    assert event == {
        "level": "info",
        "event": "exchange_ended",
        "operation_id": "op_1",
        "request_id": "req-1",
        "pool": "chat",
        "ending": "upstream_broke",
        "reason": "replica_died",
        "code": "upstream_decode_interrupted",
        "attempts": 2,
        "delivered_deltas": 37,
        "duration_s": 1.5,
        "logger": "envoy_ext.test",
    }


def test_a_request_that_is_held_at_a_boundary_is_told_by_ids_alone(
    observer: LoggingObserver, lines: Lines
) -> None:
    observer.note(SAMPLES[BoundaryHeld])
    event = one(lines)
    assert event.pop("ts").endswith("Z")
    assert event == {
        "level": "warning",
        "event": "data_class_forbidden",
        "operation_id": "op_1",
        "request_id": "req-1",
        "pool": "chat",
        "data_class": "default",
        "logger": "envoy_ext.test",
    }


@pytest.mark.parametrize(
    ("outcome", "events"),
    [
        (CallOutcome.GRANTED, []),
        (CallOutcome.UNWATCHED, []),
        (CallOutcome.ANSWERED, ["tool_call_replayed"]),
        (CallOutcome.FENCED, ["tool_call_refused"]),
    ],
)
def test_a_tool_call_that_is_not_made_has_a_line_of_ids(
    observer: LoggingObserver, lines: Lines, outcome: CallOutcome, events: list[str]
) -> None:
    observer.note(replace(SAMPLES[ToolCallDecided], outcome=outcome))  # type: ignore[arg-type]
    assert [event["event"] for event in lines.events] == events


@pytest.mark.parametrize(
    ("state", "recorded", "events"),
    [
        (CallState.RECORDED, True, []),
        (CallState.NOT_SENT, True, []),
        (CallState.UNKNOWN, True, ["tool_call_outcome_unknown"]),
        (CallState.RECORDED, False, ["tool_call_not_recorded"]),
    ],
)
def test_an_end_of_a_tool_call_that_nobody_knows_has_a_line(
    observer: LoggingObserver, lines: Lines, state: CallState, recorded: bool, events: list[str]
) -> None:
    observer.note(
        replace(SAMPLES[ToolCallEnded], state=state, recorded=recorded)  # type: ignore[arg-type]
    )
    assert [event["event"] for event in lines.events] == events


def test_a_good_attempt_is_not_worth_a_line(observer: LoggingObserver, lines: Lines) -> None:
    observer.note(attempt_finished(AttemptOutcome.COMPLETED))
    assert lines.events == []


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        (AttemptOutcome.REPLICA_DIED, "warning"),
        (AttemptOutcome.UNKNOWN, "warning"),
        (AttemptOutcome.OVERLOADED, "info"),
        (AttemptOutcome.CANCELLED, "info"),
        (AttemptOutcome.CLIENT_ERROR, "info"),
    ],
)
def test_a_lost_replica_is_a_warning_and_a_busy_one_or_a_clients_mistake_is_not(
    outcome: AttemptOutcome, level: str, observer: LoggingObserver, lines: Lines
) -> None:
    observer.note(attempt_finished(outcome))
    event = one(lines)
    assert (event["level"], event["outcome"], event["replica"]) == (level, outcome.value, "a")
    assert (event["attempt_id"], event["detail"]) == ("att_1", "upstream_reset")


def test_a_replay_that_may_not_start_is_a_line_that_says_why(observer: LoggingObserver, lines: Lines) -> None:
    observer.note(SAMPLES[ReplayRefused])
    event = one(lines)
    said = {key: event[key] for key in ("level", "event", "operation_id", "pool", "code", "why")}
    assert said == {
        "level": "info",
        "event": "replay_refused",
        "operation_id": "op_1",
        "pool": "chat",
        "code": "replay_not_allowed",
        "why": "the prompt is too long to compute again",
    }


def test_a_bug_is_logged_with_where_it_was_and_its_stack(observer: LoggingObserver, lines: Lines) -> None:
    def broken() -> None:
        raise ImpossibleEvent("no row for this")

    observer.note_bug("<Exchange op_1>", catch(broken))
    event = one(lines)
    assert (event["level"], event["event"], event["where"]) == ("error", "bug", "<Exchange op_1>")
    assert event["exception"]["type"] == "ImpossibleEvent"
    assert event["exception"]["message"] == "no row for this"
    assert event["exception"]["stack"][-1].endswith(" broken")


def test_a_store_that_is_down_is_told_once_and_not_with_each_append(
    observer: LoggingObserver, lines: Lines
) -> None:
    observer.note(StoreLost("the disk is full"))
    for _ in range(3):
        observer.note_journal(2.0, failed=True)
    observer.note(StoreBack(12.5))
    lost, back = lines.events
    assert (lost["event"], lost["level"], lost["why"]) == ("store_lost", "error", "the disk is full")
    assert (back["event"], back["level"], back["seconds"]) == ("store_back", "warning", 12.5)


def test_an_exchange_that_was_not_recorded_says_so(observer: LoggingObserver, lines: Lines) -> None:
    observer.note(replace(exchange_ended(), recorded=False))
    assert one(lines)["recorded"] is False


def test_an_exception_of_python_does_not_bring_the_text_it_could_not_read_into_the_log(
    observer: LoggingObserver, lines: Lines
) -> None:
    def broken() -> None:
        try:
            int(SECRET)
        except ValueError as error:
            raise RuntimeError(SECRET) from error

    observer.note_bug("session", catch(broken))
    observer.note_bug("session", ExceptionGroup("several", [KeyError(SECRET)]))
    assert SECRET not in "".join(lines.texts)
    first, second = lines.events
    assert first["exception"]["cause"]["type"] == "ValueError"
    assert second["exception"]["exceptions"][0]["type"] == "KeyError"


def test_the_systems_own_words_stay(observer: LoggingObserver, lines: Lines) -> None:
    observer.note_bug("journal", OSError(28, "No space left on device"))
    assert one(lines)["exception"]["message"] == "No space left on device"


@pytest.mark.parametrize(
    "text",
    ['a\n{"event":"forged"}', "\r\n", "\x1b[2J", "\u2028\u2029\x85", "\udce9", '"\\', "\x00"],
)
def test_no_value_can_begin_a_line_or_steer_a_terminal(
    text: str, observer: LoggingObserver, lines: Lines
) -> None:
    observer.note(attempt_finished(detail=text))
    (line,) = lines.texts
    assert line.isascii()
    assert line.isprintable()
    assert one(lines)["detail"] == text


def test_a_long_text_is_cut(observer: LoggingObserver, lines: Lines) -> None:
    observer.note(attempt_finished(detail="x" * 100_000))
    assert len(one(lines)["detail"]) == MAX_TEXT_CHARS + 1


def test_values_that_json_does_not_have_become_null_or_text(logger: logging.Logger, lines: Lines) -> None:
    logger.info(
        "measured", extra={"ratio": float("nan"), "size": float("inf"), "kind": ValueError, "on": True}
    )
    event = one(lines)
    assert (event["ratio"], event["size"], event["on"]) == (None, None, True)
    assert event["kind"] == "<class 'ValueError'>"


def test_a_librarys_message_is_kept_as_text_up_to_its_first_line(
    logger: logging.Logger, lines: Lines
) -> None:
    logger.warning("Task exception was never retrieved\nfuture: <Task exception=ValueError('%s')>", SECRET)
    event = one(lines)
    assert (event["event"], event["message"]) == ("message", "Task exception was never retrieved")
    assert SECRET not in lines.texts[0]


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("envoy_ext")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before


@pytest.mark.usefixtures("_restored_logging")
def test_configured_logging_writes_our_events_from_the_level_on_and_libraries_from_warning_on() -> None:
    stream = io.StringIO()
    writer = configure_logging("info", stream)
    logging.getLogger("envoy_ext").debug("too_fine")
    logging.getLogger("envoy_ext.sim").info("started")
    logging.getLogger("aiohttp.server").info("chatter")
    logging.getLogger("aiohttp.server").warning("odd %s", "thing")
    writer.close()
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    shown = [(event["logger"], event["event"], event.get("message")) for event in events]
    assert shown == [("envoy_ext.sim", "started", None), ("aiohttp.server", "message", "odd thing")]


@pytest.mark.usefixtures("_restored_logging")
def test_configuring_twice_writes_each_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", first)
    writer = configure_logging("info", second)
    logging.getLogger("envoy_ext").info("once")
    writer.close()
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        configure_logging("loud")


def test_the_last_lines_of_a_process_are_written_when_it_ends() -> None:
    program = (
        "import logging, sys; from envoy_ext.observability.logs import configure_logging; "
        "configure_logging(); logging.getLogger('envoy_ext').info('last_word'); sys.exit(3)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == ["last_word"]
