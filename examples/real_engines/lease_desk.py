"""Where workers ask for their leases: on the way to the gateway's own port, or in a gateway's place.

It writes down what was said and when, by this machine's monotonic clock, and what the asker saw at that
moment. It can be away, as if the way to it were cut, and grants leases of its own.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from real_engines import client
from real_engines.processes import wait_for

RENEW = "/v1/leases/renew"
STOPPED = "/v1/leases/stopped"


@dataclass(frozen=True)
class Word:
    """One question of a worker and the answer to it."""

    at: float
    """When it had come, in monotonic seconds."""
    path: str
    attempt_id: str
    granted: bool
    heard: bool
    """Whether the gateway, or this desk, knew the lease."""
    saw: Any
    """What `at_stop` gave, for a word of a stop."""


class LeaseDesk:
    """Listens on a free port of this machine until it is closed."""

    def __init__(self) -> None:
        self.gateway_url = ""
        """The gateway's own lease port, for the attempts that are not this desk's."""
        self.at_stop: Callable[[], Any] = lambda: None
        """Called when a stop is said, before it is answered: the worker waits as long."""
        self._away = threading.Event()
        self._words: list[Word] = []
        self._own: dict[str, bool] = {}
        """Leases of its own, and whether they are held."""
        desk = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if desk.is_away:
                    self.close_connection = True
                    return
                status, answer = desk.answer(time.monotonic(), self.path, body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Says nothing: the words are written down."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- what a scenario does with it -------------------------------------------------------------

    def grant(self, attempt_id: str, operation_id: str, token: int = 1, ttl_s: float = 6.0) -> dict[str, str]:
        """A lease of this desk; the headers that offer it to a worker."""
        self._own[attempt_id] = True
        return {
            "x-envoy-ext-attempt": attempt_id,
            "x-envoy-ext-operation": operation_id,
            "x-envoy-ext-lease": str(token),
            "x-envoy-ext-lease-ttl": str(ttl_s),
        }

    def revoke(self, attempt_id: str) -> float:
        """Grant it no more; when that was."""
        self._own[attempt_id] = False
        return time.monotonic()

    @property
    def is_away(self) -> bool:
        return self._away.is_set()

    @contextmanager
    def away(self) -> Iterator[float]:
        """Nobody gets an answer meanwhile."""
        self._away.set()
        try:
            yield time.monotonic()
        finally:
            self._away.clear()

    def read_words(self, attempt_id: str, path: str) -> list[Word]:
        """What was said of an attempt, in its order."""
        return [word for word in [*self._words] if (word.attempt_id, word.path) == (attempt_id, path)]

    def wait_refused(self, attempt_id: str) -> Word:
        """The first renewal that was not granted."""
        return wait_for(
            lambda: next((word for word in self.read_words(attempt_id, RENEW) if not word.granted), None),
            f"a renewal of {attempt_id} that is refused",
        )

    def wait_stopped(self, attempt_id: str) -> Word:
        """The word that an attempt has stopped."""
        return wait_for(
            lambda: next(iter(self.read_words(attempt_id, STOPPED)), None),
            f"the word that {attempt_id} has stopped",
        )

    # --- what workers ask -------------------------------------------------------------------------

    def answer(self, at: float, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for one question."""
        attempt_id = json.loads(body)["attempt_id"]
        saw = self.at_stop() if path == STOPPED else None
        if attempt_id in self._own:
            told = {"granted": self._own[attempt_id]} if path == RENEW else {}
            status, answer = 200, json.dumps(told).encode()
        else:
            status, answer = self._pass_on(path, body)
        granted = status == 200 and json.loads(answer).get("granted") is True
        self._words.append(Word(at, path, attempt_id, granted, status == 200, saw))
        return status, answer

    def _pass_on(self, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            status, _, answer = client.post(self.gateway_url, path, json.loads(body))
        except (OSError, http.client.HTTPException):
            return 502, b"{}"
        return status, answer
