"""A request that is not taken at this moment is refused at its headers, before its body is sent over."""

from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from envoy_ext.adapters.extproc_delivery import DeliverySession
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.services.loop_watch import LoopWatch
from tests.support.clock import ManualClock
from tests.support.sidecar import Sidecar

FIELDS = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}


class Outbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.finished = False

    def send(self, response: bytes) -> None:
        self.sent.append(ProcessingResponse.FromString(response))

    def finish(self) -> None:
        self.finished = True

    def abort(self) -> None:
        raise AssertionError("broken off")


def receive_headers(sidecar: Sidecar) -> Outbox:
    outbox = Outbox()
    request = ProcessingRequest()
    for name, value in FIELDS.items():
        request.request_headers.headers.headers.append(HeaderValue(key=name, raw_value=value.encode()))
    DeliverySession(sidecar.arrivals, outbox, lambda: "req-1", lambda seconds: None).receive(request)
    return outbox


@pytest.mark.parametrize(("why", "status"), [("draining", 503), ("late", 429)])
async def test_it_is_refused_at_once(why: str, status: int) -> None:
    watch = LoopWatch(0.1, TrafficClasses(()), ManualClock())
    sidecar = Sidecar(loop_watch=watch)
    (answer,) = receive_headers(sidecar).sent
    assert answer.WhichOneof("response") == "request_headers"
    if why == "draining":
        sidecar.exchanges.start_draining()
    watch.lag.shedding = why == "late"
    outbox = receive_headers(sidecar)
    (answer,) = outbox.sent
    assert answer.immediate_response.status.code == status
    assert outbox.finished
