"""The delivery filter's session at the jobs listener: a run of a job, sent by the sidecar itself.

What its request is for is known already; its answer goes the way of any other, and is kept by its exchange.
"""

from collections.abc import Callable
from typing import Any

from envoy_ext.adapters import extproc_codec as codec
from envoy_ext.adapters import headers as h
from envoy_ext.adapters.extproc_delivery import DeliverySession
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.domain import names
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.services.arrivals import Arrivals
from envoy_ext.services.job_runs import Runs


class RunSession(DeliverySession):
    """Takes in what the runner has sent, and nothing else."""

    __slots__ = ("_run", "_runs")

    def __init__(
        self,
        runs: Runs,
        arrivals: Arrivals,
        outbox: Outbox,
        mint_request_id: Callable[[], str],
        note_chunk: Callable[[float], None],
    ) -> None:
        super().__init__(arrivals, outbox, mint_request_id, note_chunk)
        self._runs = runs
        self._run = ""

    def receive(self, message: Any) -> None:
        """Take in one message of the jobs listener."""
        if message.WhichOneof("request") == "request_body":
            self._open()
        else:
            super().receive(message)

    def _receive_request_headers(self, message: Any) -> None:
        request = message.request_headers
        headers = h.read_headers(request.headers)
        self._unsent = h.list_forged(headers)
        self._request_id = h.read_request_id(headers) or self._mint_request_id()
        self._run = headers.get(names.RUN, "")
        if request.end_of_stream:
            self._open()
        else:
            self._body_expected = True
            self._outbox.send(codec.build_request_headers_reply((), ()))

    def _open(self) -> None:
        self._delivery = self._runs.open(self._run, self)
        if self._delivery is None:
            text = "this is no run that is expected here"
            self._arrivals.refuse(
                self, ClientError("invalid_request", self._request_id, message=text, status=404)
            )
