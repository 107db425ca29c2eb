"""Whoever logs never waits for whoever reads the log."""

import io
import json
import logging
import threading

from envoy_ext.observability.log_writer import LineWriter


class StuckStream(io.StringIO):
    """A pipe whose reader has stopped: a write blocks until the reader is back."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.reader_is_back = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.reader_is_back.wait(30), "the test did not let the reader come back"
        return super().write(text)


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, text, args, None)


def test_lines_come_out_in_order_and_close_writes_what_waits() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    for number in range(1_000):
        writer.handle(record("line %d", number))
    writer.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(1_000)]


def test_a_stuck_reader_blocks_no_caller_and_the_lost_lines_are_counted() -> None:
    stream = StuckStream()
    writer = LineWriter(stream, max_waiting_lines=2)
    writer.handle(record("first"))
    assert stream.entered.wait(30)
    for number in range(5):
        writer.handle(record("line %d", number))
    stream.reader_is_back.set()
    writer.close()
    written = stream.getvalue().splitlines()
    dropped = [json.loads(line) for line in written if line.startswith("{")]
    assert [line for line in written if not line.startswith("{")] == ["first", "line 0", "line 1"]
    assert [(one["event"], one["count"]) for one in dropped] == [("log_lines_dropped", 3)]


def test_a_record_that_cannot_be_formatted_is_counted_and_breaks_nobody() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    writer.handle(record("%d lines", "no number"))
    writer.handle(record("good"))
    writer.close()
    lines = stream.getvalue().splitlines()
    assert "good" in lines
    assert sum(json.loads(line)["count"] for line in lines if line.startswith("{")) == 1


def test_a_closed_stream_is_survived() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    stream.close()
    writer.handle(record("into nothing"))
    writer.close()


def test_closing_twice_or_by_logging_itself_at_exit_waits_for_nothing() -> None:
    others = set(threading.enumerate())
    writer = LineWriter(io.StringIO())
    writer.handle(record("line"))
    # As logging.shutdown does it: with the handler's lock held.
    writer.acquire()
    try:
        writer.flush()
        writer.close()
    finally:
        writer.release()
    writer.close()
    assert set(threading.enumerate()) <= others
