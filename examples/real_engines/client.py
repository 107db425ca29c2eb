"""A streaming client of the standard library's, that writes down what it saw, and two plain calls."""

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

JSON = {"content-type": "application/json"}
NO_HEADERS: Mapping[str, str] = {}
PATIENCE_S = 120
"""For one read: a prompt of a thousand tokens takes ten seconds on one busy thread."""


@dataclass
class Seen:
    """One streamed answer, by its client's eyes."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    deltas: int = 0
    last_delta_at: float = 0.0
    """When the last of them had come, in monotonic seconds."""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    done: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    after_error: int = 0
    """Events that came after an error event."""
    cut: bool = False
    """The body did not end as HTTP wants it."""

    @property
    def complete(self) -> bool:
        """One whole answer: a finish, the API's last mark, no error, an orderly end."""
        return self.status == 200 and bool(self.finish) and self.done and not self.errors and not self.cut

    @property
    def operation_id(self) -> str:
        return self.headers.get("x-operation-id", "")

    def tell(self) -> str:
        """What it saw, in a line."""
        text = self.text if len(self.text) <= 40 else f"{self.text[:20]}…{self.text[-20:]}"
        said = f"HTTP {self.status}, {self.deltas} deltas, {text!r}"
        if self.cut:
            return f"{said}, then the connection was cut"
        if self.errors:
            return f"{said}, error {self.errors[0].get('code')} ({self.errors[0].get('reason')})"
        return f"{said}, finish {self.finish}{', [DONE]' if self.done else ''}"


class Stream:
    """One request for a streamed answer. It is sent at once and read when asked."""

    def __init__(
        self,
        url: str,
        body: dict[str, Any],
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        self.seen = Seen()
        self._connection = _connect(url)
        self._connection.request("POST", path, json.dumps(body), {**JSON, **headers})
        self._answer: http.client.HTTPResponse | None = None
        self._unread = bytearray()

    def read_deltas(self, wanted: int) -> Seen:
        """Read until so many deltas have come, or the answer has ended."""
        while self.seen.deltas < wanted and self._read_line():
            pass
        return self.seen

    def read_text(self, characters: int) -> Seen:
        """Read until so much text has come, or the answer has ended: how many tokens a delta has may vary."""
        while len(self.seen.text) < characters and self._read_line():
            pass
        return self.seen

    def read_all(self) -> Seen:
        """Read to the end."""
        while self._read_line():
            pass
        self.leave()
        return self.seen

    def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        if self._answer is not None:
            self._answer.close()
        self._connection.close()

    def _read_line(self) -> bool:
        end = self._unread.find(b"\n")
        if end < 0:
            return self._read_more()
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        if line.startswith(b"data:"):
            self._read_event(line.removeprefix(b"data:").strip())
        return True

    def _read_more(self) -> bool:
        """Not by the response's own `readline`: a body that is cut between two chunks is whole to it."""
        try:
            if self._answer is None:
                self._answer = self._connection.getresponse()
                self.seen.status = self._answer.status
                self.seen.headers = {name.lower(): value for name, value in self._answer.getheaders()}
            more = self._answer.read1(65_536)
        except (http.client.HTTPException, ConnectionError):
            self.seen.cut = True
            return False
        self._unread += more
        return bool(more)

    def _read_event(self, data: bytes) -> None:
        seen = self.seen
        seen.after_error += bool(seen.errors)
        if data == b"[DONE]":
            seen.done = True
            return
        event = json.loads(data)
        if "error" in event:
            seen.errors.append(event["error"])
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            content = delta.get("content") or delta.get("reasoning_content")
            if content:
                seen.deltas += 1
                seen.last_delta_at = time.monotonic()
                seen.text += content
            seen.finish = choice["finish_reason"] or seen.finish
        seen.usage = event.get("usage") or seen.usage


def post(
    url: str, path: str, body: dict[str, Any], headers: Mapping[str, str] = NO_HEADERS
) -> tuple[int, dict[str, str], bytes]:
    """One plain call: status, headers, body."""
    return _call(url, "POST", path, json.dumps(body), {**JSON, **headers})


def get(url: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """One plain call: status, headers, body."""
    return _call(url, "GET", path, None, NO_HEADERS)


def _call(
    url: str, method: str, path: str, body: str | None, headers: Mapping[str, str]
) -> tuple[int, dict[str, str], bytes]:
    connection = _connect(url)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
