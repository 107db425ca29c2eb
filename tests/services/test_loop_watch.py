"""New work is refused while the event loop is late; what runs goes on."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.callers import Credentials
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.events import ResponseBody
from envoy_ext.domain.job import JobState
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.authz import CheckRequest
from envoy_ext.services.heads import RequestHead
from envoy_ext.services.loop_watch import LoopWatch
from tests.support.clock import ManualClock
from tests.support.job_sidecar import JobSidecar
from tests.support.sidecar import BODY, REST, Sent, Sidecar, play_until_delta

HEAD = RequestHead("POST", "/v1/chat/completions", "req-1", Credentials(), "")

CLASSES = TrafficClasses([TrafficClass("alarm", priority=1), TrafficClass("chat")])


def build(classes=CLASSES, **options):
    return LoopWatch(0.1, classes, ManualClock(), **options)


def be_late(watch, late_s, looks=40):
    for _ in range(looks):
        watch._due = watch._clock.now()
        watch._clock.advance(late_s)
        watch.look()


def refuses(watch, request_class=None):
    return watch.find_refusal("req-1", request_class) is not None


def test_what_is_refused_and_how():
    shed, looks = [], []
    watch = build(on_shed=lambda: shed.append(1), on_look=looks.append)
    assert not refuses(watch)
    be_late(watch, 0.15)
    refusal = watch.find_refusal("req-1", "chat")
    assert (refusal.code, refusal.http_status, refusal.request_id) == ("queue_full", 429, "req-1")
    assert "gateway itself" in refusal.message
    assert refuses(watch)
    assert refuses(watch, "nobody's name")
    assert not refuses(watch, "alarm")
    assert len(shed) == 3
    assert looks == [pytest.approx(0.15)] * 40
    be_late(watch, 0.4)
    assert refuses(watch, "alarm")
    be_late(watch, 0.0)
    assert not refuses(watch)


def test_where_all_classes_are_of_one_priority_none_is_spared():
    watch = build(TrafficClasses([TrafficClass("chat")]))
    be_late(watch, 0.15)
    assert refuses(watch, "chat")
    assert watch.sheds_jobs


async def test_an_exchange_goes_on_and_the_next_is_refused():
    watch = build()
    sidecar = Sidecar(loop_watch=watch)
    played = await play_until_delta(sidecar)
    be_late(watch, 0.2)
    client = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(request_id="req-2"), client)
    (refusal,) = client.replies
    assert isinstance(refusal, step.RespondLocally)
    assert refusal.error.code == "queue_full"
    assert refusal.error.retry_after_s in (1, 2, 3)
    assert sidecar.exchanges.inflight == 1
    assert not sidecar.exchanges.starts_jobs
    played.delivery.receive(ResponseBody(REST, end=True))
    await sidecar.settle()
    (*_, last) = played.client.replies
    assert last == step.ForwardBody(REST, end=True)
    be_late(watch, 0.0)
    after = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(request_id="req-3"), after)
    await sidecar.settle()
    assert isinstance(after.replies[0], step.ForwardRequest)


async def test_a_job_waits_meanwhile():
    watch = build()
    gateway = JobSidecar(Sidecar(replicas=("a",), concurrency=1, loop_watch=watch))
    await gateway.submit()
    be_late(watch, 0.2)
    await gateway.look()
    assert gateway.envoy.took == []
    assert (await gateway.read()).state is JobState.QUEUED
    be_late(watch, 0.0)
    gateway.runner._paused.clear()
    await gateway.look()
    (run,) = gateway.envoy.took
    await run.be_answered()
    await gateway.wait_idle()


async def test_ext_authz_gives_the_same_answer():
    watch = build()
    sidecar = Sidecar(loop_watch=watch)
    be_late(watch, 0.2)
    verdict = await sidecar.authz.check(CheckRequest(HEAD, BODY))
    assert isinstance(verdict, ClientError)
    assert verdict.code == "queue_full"
