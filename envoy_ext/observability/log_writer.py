"""A logging handler that never makes its caller wait for whoever reads the log.

stderr is a pipe in every container. When its reader stops, a write to it blocks, and on the event
loop that would stop every stream. So a thread of its own writes, and lines that find the queue
full are dropped and counted.
"""

import contextlib
import json
import logging
import queue
import threading
from typing import Final, TextIO

MAX_WAITING_LINES: Final = 10_000
"""A few megabytes, and many seconds of a busy gateway's lines."""
CLOSE_S: Final = 2.0
"""How long the last lines may take at the end of the process; a stuck reader must not keep it alive."""


class LineWriter(logging.Handler):
    """Formats on the caller's thread, writes on its own. `close` writes what waits."""

    def __init__(self, stream: TextIO, max_waiting_lines: int = MAX_WAITING_LINES) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(max_waiting_lines)
        self._dropped = 0
        # Not the handler's own lock: `logging.shutdown` holds that one while it waits in `close`.
        self._dropped_lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_lines, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line."""
        try:
            self._lines.put_nowait(self.format(record))
        except Exception:  # formatting calls `str` of whatever was logged, which may raise anything
            # That, or the queue is full. Neither may break the code that
            # logged it, and `logging` itself would print the record's arguments to stderr, from here.
            with self._dropped_lock:
                self._dropped += 1

    def close(self) -> None:
        """Write what waits, for a limited time. `logging` calls it at exit too; twice is once."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait("")  # wakes the thread
        self._thread.join(CLOSE_S)
        super().close()

    def _write_lines(self) -> None:
        while not (self._closing.is_set() and self._lines.empty()):
            line = self._lines.get()
            if line:
                self._write(line)
            self._report_dropped()
            if self._lines.empty():
                self._flush()

    def _report_dropped(self) -> None:
        with self._dropped_lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._write(json.dumps({"level": "warning", "event": "log_lines_dropped", "count": dropped}))

    # ValueError: the stream was closed. There is nowhere left to say so.

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")

    def _flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
