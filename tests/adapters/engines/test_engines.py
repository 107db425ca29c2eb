"""Where each engine's pages are, and what an answer other than 200 says."""

import json
from pathlib import Path
from typing import get_args

import pytest

from envoy_ext.adapters.engines import ENGINES, get_engine, read_refusal
from envoy_ext.adapters.engines.refusal import read_health_refusal
from envoy_ext.config.pools import Pool

JSON = Path(__file__).parents[2] / "data" / "json"


def test_there_is_an_engine_for_each_name_that_the_config_takes() -> None:
    assert set(ENGINES) == set(get_args(Pool.model_fields["engine"].annotation))
    assert all(get_engine(name).name == name for name in ENGINES)


def test_an_engine_that_is_not_known_is_refused_with_the_ones_that_are() -> None:
    with pytest.raises(ValueError, match=r"'ollama'.*vllm"):
        get_engine("ollama")


@pytest.mark.parametrize(
    ("engine", "metrics", "health"),
    [
        ("vllm", "http://10.0.0.1:8000/metrics", "http://10.0.0.1:8000/health"),
        ("trtllm", "http://10.0.0.1:8000/prometheus/metrics", "http://10.0.0.1:8000/health"),
        ("triton", "http://10.0.0.1:8002/metrics", "http://10.0.0.1:8000/v2/health/ready"),
        ("generic", "http://10.0.0.1:8000/metrics", "http://10.0.0.1:8000/health"),
    ],
)
@pytest.mark.parametrize("end", ["", "/"])
def test_pages_are_where_the_engine_has_them(engine: str, metrics: str, health: str, end: str) -> None:
    found = get_engine(engine)
    assert found.build_metrics_url("http://10.0.0.1:8000" + end) == metrics
    assert found.build_health_url("http://10.0.0.1:8000" + end) == health


def test_another_port_keeps_the_brackets_of_an_address() -> None:
    assert get_engine("triton").build_metrics_url("http://[::1]:8000") == "http://[::1]:8002/metrics"
    assert get_engine("triton").build_metrics_url("http://gpu-1") == "http://gpu-1:8002/metrics"


def error(message: object, code: int = 503) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (501, (JSON / "llamacpp_metrics_disabled_501.json").read_bytes(), "unsupported"),
        (503, (JSON / "llamacpp_loading_503.json").read_bytes(), "loading"),
        (404, b'{"detail":"Not Found"}', "unsupported"),
        (405, b"", "unsupported"),
        (503, error("loading model"), "loading"),
        (503, b"", "bad_status"),
        (503, b'{"error":"unhealthy","error_type":"healthcheck"}', "bad_status"),
        (503, error("No available server"), "bad_status"),
        (503, error(["Loading"]), "bad_status"),
        (503, b'["Loading model"]', "bad_status"),
        (503, b"Loading model", "bad_status"),
        (503, b'{"error":' * 3000, "bad_status"),
        (503, b"[" * 4096, "bad_status"),
        (503, b"\xff\xfe", "bad_status"),
        (500, error("Loading model", 500), "bad_status"),
        (401, b"", "bad_status"),
        (429, b"", "bad_status"),
        (302, b"", "bad_status"),
        (204, b"", "bad_status"),
    ],
)
def test_what_an_answer_other_than_200_says(status: int, body: bytes, reason: str) -> None:
    assert read_refusal(status, body) == reason


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, b"", "engine_dead"),
        (503, (JSON / "llamacpp_loading_503.json").read_bytes(), "loading"),
        (500, b"", "bad_status"),
        (401, b"", "bad_status"),
        (404, b"", "unsupported"),
    ],
)
def test_only_a_503_of_a_health_page_says_that_the_engine_is_dead(
    status: int, body: bytes, reason: str
) -> None:
    assert read_health_refusal(status, body) == reason
