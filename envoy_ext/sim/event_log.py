"""What one engine did with each request, one JSON object a line; kept only where a file is named.

`time` is CLOCK_MONOTONIC, which all processes of a machine share, also across network namespaces: the
logs of several engines, of a sidecar and of a client can be put in one order. Each line names the
request, the attempt and the generation it speaks of.

    start    the request has come whole and was given a generation
    token    one token is computed
    tool     a tool was called, and this came of it: `tool` (its path), `status` (0: no answer), `replayed`
             (from a ledger), `body`
    chunk    bytes of an answer are about to be written; `data` is what
    end      nothing of it is computed or sent any more; `ended` as in `RequestRecord`, or `killed`

A line is in the file before what it tells of happens, so what anybody was sent is in the log, whatever
death follows. What a simulated engine says is nobody's secret; its prompt is not in the log.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, TextIO
from urllib.parse import urlsplit

from envoy_ext.domain.names import ATTEMPT
from envoy_ext.sim.state import RequestRecord
from envoy_ext.sim.tool_calls import ToolResult


class EventLog:
    """Writes for one engine. Without a path it writes nothing."""

    def __init__(self, path: str, replica: str) -> None:
        self._path = path
        self._replica = replica
        self._file: TextIO | None = None

    def open(self) -> None:
        """Go on behind what an earlier life of the engine has written."""
        if self._path:
            # Line by line: the kernel has each one, and a SIGKILL of this process takes none away.
            self._file = open(self._path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, record: RequestRecord, what: str, **more: object) -> None:
        """One line of a request."""
        if self._file is None:
            return
        line: dict[str, Any] = {
            "time": time.monotonic(),
            "replica": self._replica,
            "request_id": record.request_id,
            "attempt_id": record.own_headers.get(ATTEMPT),
            "generation": record.generation,
            "what": what,
            **more,
        }
        self._file.write(json.dumps(line) + "\n")


@dataclass(frozen=True, slots=True)
class RequestLog:
    """The lines of one request."""

    log: EventLog
    record: RequestRecord

    def start(self) -> None:
        """It has a generation."""
        self.log.write(self.record, "start", body_sha256=self.record.body_sha256)

    def token(self, index: int) -> None:
        """One more is computed; the first has the index 0."""
        self.log.write(self.record, "token", index=index)

    def tool(self, result: ToolResult) -> None:
        """A call has come to its end."""
        path = urlsplit(result.url).path
        more = {"status": result.status, "replayed": result.replayed, "body": result.body}
        self.log.write(self.record, "tool", tool=path, **more)

    def chunk(self, data: bytes) -> None:
        """About to be written."""
        self.log.write(self.record, "chunk", data=data.decode(errors="backslashreplace"))

    def end(self, ended: str) -> None:
        """Over."""
        self.log.write(self.record, "end", ended=ended)
