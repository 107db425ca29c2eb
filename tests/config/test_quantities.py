"""Durations, sizes and URLs, each way of writing them."""

import pytest
from pydantic_core import PydanticCustomError

from envoy_ext.config.quantities import parse_duration, parse_size
from envoy_ext.config.urls import Origin, parse_replica_url


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("60s", 60),
        ("500ms", 0.5),
        ("2m", 120),
        ("1h", 3600),
        ("1.5s", 1.5),
        (" 3s ", 3),
        ("24h", 86_400),
        ("0s", 0),
        (7, 7),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["60", "", "s", "1 s", "1m30s", "-1s", "1e3s", "1d", "٣s", -1, True, None, [], float("nan"), "25h"],
)
def test_anything_else_is_no_duration(written: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [("512B", 512), ("64KiB", 65_536), ("16MiB", 16 << 20), ("1GiB", 1 << 30), (7, 7), (0, 0)],
)
def test_a_size_is_read_as_bytes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["16MB", "16M", "16", "1.5MiB", "-1B", "16 MiB", 1.0, -1, True, None])
def test_anything_else_is_no_size(written: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_size(written)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://10.0.0.11:8000", "10.0.0.11", 8000),
        ("http://10.0.0.11", "10.0.0.11", 80),
        ("http://10.0.0.11:8000/", "10.0.0.11", 8000),
        ("http://GPU-1.example:8000", "gpu-1.example", 8000),
        ("http://engine_1:8000", "engine_1", 8000),
        ("http://[::1]:8000", "::1", 8000),
        ("http://[2001:DB8:0:0::1]", "2001:db8::1", 80),
        ("http://3com.example:1", "3com.example", 1),
    ],
)
def test_a_replica_url_has_a_host_and_a_port(url: str, host: str, port: int) -> None:
    assert parse_replica_url(url) == Origin(host=host, port=port)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://:8000",
        "http://10.0.0.11:",
        "http://10.0.0.11:0",
        "http://10.0.0.11:65536",
        "http://010.0.0.11",
        "http://10.0.0",
        "http://a b",
        "http://a/b",
        "http://a?b",
        "http://a#b",
        "http://me@a",
        "http://-a",
        "http://[::1",
        "http://::1",
        "http://[127.0.0.1]",
        "HTTP://a",
        "https://a",
        "a:8000",
        "http://a\n",
    ],
)
def test_anything_else_is_no_replica_url(url: str) -> None:
    with pytest.raises(PydanticCustomError):
        parse_replica_url(url)
