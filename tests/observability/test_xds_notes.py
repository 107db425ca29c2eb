"""What an Envoy's word on our resources becomes: a number to alarm on, and a line with its reason."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from envoy_ext.domain.ids import PoolName
from envoy_ext.observability.metrics import Metrics
from envoy_ext.wiring.notes import count_xds
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.session import Nacked, NotServed, Pushed


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), [PoolName("chat")])


def value(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(name, {"kind": "eds"}) or 0.0


def test_a_refusal_raises_the_alarm_metric_and_says_why(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        count_xds(Nacked(Kind.EDS, "LoadBalancingWeight: value must be at least 1"), metrics)
    assert value(metrics, "envoy_ext_xds_nacks_total") == 3
    assert value(metrics, "envoy_ext_xds_pushes_total") == 0
    [line, *_] = caplog.records
    assert (line.levelno, line.getMessage()) == (logging.ERROR, "xds_refused")
    assert (line.kind, line.detail) == ("eds", "LoadBalancingWeight: value must be at least 1")  # type: ignore[attr-defined]


def test_a_push_is_counted_and_no_alarm(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    count_xds(Pushed(Kind.EDS, 1, 0), metrics)
    assert value(metrics, "envoy_ext_xds_pushes_total") == 1
    assert value(metrics, "envoy_ext_xds_nacks_total") == 0
    assert caplog.records == []


def test_what_cannot_be_served_is_a_line_with_its_reason(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    count_xds(NotServed("type.googleapis.com/unknown", "more than 10000 names"), metrics)
    [line] = caplog.records
    assert (line.levelno, line.getMessage()) == (logging.WARNING, "xds_not_served")
    assert (line.type_url, line.detail) == ("type.googleapis.com/unknown", "more than 10000 names")  # type: ignore[attr-defined]
