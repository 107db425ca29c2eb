"""A connection to the operations port, for what never becomes a request of the application.

aiohttp answers a malformed head by itself: as text, with its own version and Python's, and with
the bytes it could not read. Here that answer is an error like every other.
"""

import asyncio
from typing import Final

from aiohttp import hdrs, web
from aiohttp.web_request import BaseRequest

from envoy_ext.adapters.ops_answers import build_error
from envoy_ext.ports import Observer

SERVER_NAME: Final = "envoy-ext"
"""Instead of the versions of Python and aiohttp, which tell strangers what to try."""
_KEEPALIVE_S: Final = 75.0
"""Longer than any interval of scrapes and probes; aiohttp's own hour holds a file descriptor each."""


class OpsConnection(web.RequestHandler):
    """One client's connection; the server it is given to owns it and closes it."""

    def __init__(self, server: web.Server, observer: Observer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEPALIVE_S,
            # aiohttp's way to say "no access log", which its type leaves out: no line for each probe.
            access_log=None,  # type: ignore[arg-type]
        )
        self._observer = observer

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a head that cannot be read, or a failure beyond the middlewares' reach."""
        if exc is not None and status >= 500:
            self._observer.note_bug("operations port", exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is out: the connection is cut")
        if status >= 500:
            answer = build_error(status, "internal_error", "The answer could not be built.")
        else:
            answer = build_error(status, "invalid_request", "This is no HTTP request that can be read.")
        answer.headers[hdrs.SERVER] = SERVER_NAME
        answer.force_close()
        return answer
