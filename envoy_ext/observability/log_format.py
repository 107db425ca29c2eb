"""Log records as lines of JSON: one record, one line, whatever a field holds.

JSON escapes line breaks, control characters and everything that is not ASCII, so no value that
came from outside can begin a line of its own or move a terminal's cursor.
"""

import json
import logging
import math
import time
import traceback
from typing import Final

from envoy_ext.domain.errors import EnvoyExtError

MAX_TEXT_CHARS: Final = 2_000
"""Where a text is cut: Docker splits log lines at 16 KiB, and a split line is no JSON."""
MAX_FRAMES: Final = 20
"""The innermost frames of a stack; deeper ones are the event loop's."""
MAX_CHAIN: Final = 4
"""Causes of causes."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every LogRecord has; anything else came in as `extra` and is a field."""


class JsonFormatter(logging.Formatter):
    """Writes `{"ts", "level", "event", fields…, "logger"}`.

    A message that is one plain word is the event's name (`exchange_ended`), with its fields in
    `extra`; any other message, as libraries write them, is the text of the event `message`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line without its line break."""
        line: dict[str, object] = {"ts": _format_time(record.created), "level": record.levelname.lower()}
        if isinstance(record.msg, str) and not record.args and record.msg.isidentifier():
            line["event"] = record.msg
        else:
            line["event"] = "message"
            # asyncio goes on with the repr of the failed task, whose exception may quote a request.
            line["message"] = _plain(record.getMessage().partition("\n")[0])
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[name] = _plain(value)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = describe_exception(record.exc_info[1])
        line["logger"] = record.name
        return json.dumps(line, separators=(",", ":"))


def describe_exception(error: BaseException, depth: int = MAX_CHAIN) -> dict[str, object]:
    """Type, place and cause of an exception.

    Its message only where we know what can be in it: ours, and the system's. Other messages may
    quote what could not be read, and that may be somebody's prompt (`int("…")` does it).
    """
    described: dict[str, object] = {"type": type(error).__qualname__}
    if isinstance(error, EnvoyExtError):
        described["message"] = _plain(str(error))
    elif isinstance(error, OSError) and error.strerror:
        described["message"] = _plain(error.strerror)
    frames = traceback.extract_tb(error.__traceback__)
    described["stack"] = [f"{f.filename}:{f.lineno} {f.name}" for f in frames[-MAX_FRAMES:]]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and depth > 1:
        described["cause"] = describe_exception(cause, depth - 1)
    if isinstance(error, BaseExceptionGroup) and depth > 1:
        described["exceptions"] = [describe_exception(one, depth - 1) for one in error.exceptions[:MAX_CHAIN]]
    return described


def _format_time(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC with milliseconds."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def _plain(value: object) -> object:
    """The value as JSON can hold it, cut to a length."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        # NaN and infinity are no JSON, though Python would write them.
        return value if math.isfinite(value) else None
    text = str(value)
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"
