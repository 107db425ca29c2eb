"""Where a Redis journal is: each way of writing it, and what is said of every other."""

import dataclasses

import pytest
from pydantic_core import PydanticCustomError

from envoy_ext.config import Sentinel
from envoy_ext.config.journal import RedisUrl, parse_redis_url


def url(**parts: object) -> RedisUrl:
    nothing = RedisUrl(tls=False, host="", port=6379, socket=None, db=0, username=None, password=None)
    return dataclasses.replace(nothing, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("redis://10.0.0.3", url(host="10.0.0.3")),
        ("redis://redis_1:6380/", url(host="redis_1", port=6380)),
        ("rediss://Redis.Example:6380/12", url(tls=True, host="redis.example", port=6380, db=12)),
        ("rediss://[2001:db8::3]:6379", url(tls=True, host="2001:db8::3")),
        ("redis://a?db=3", url(host="a", db=3)),
        ("redis://:pa%40ss@a", url(host="a", password="pa@ss")),
        ("redis://me:p%C3%A4%2F@a", url(host="a", username="me", password="pä/")),
        ("redis://me@a", url(host="a", username="me")),
        ("unix:///run/redis.sock", url(socket="/run/redis.sock")),
        ("unix:/run/redis.sock?db=2", url(socket="/run/redis.sock", db=2)),
        ("unix://me:pass@/run/redis.sock", url(socket="/run/redis.sock", username="me", password="pass")),
    ],
)
def test_a_url_says_where_and_who(written: str, read: RedisUrl) -> None:
    assert parse_redis_url(written) == read


@pytest.mark.parametrize(
    "written",
    [
        "",
        "redis",
        "redis:",
        "redis://",
        "redis://:6379",
        "redis:///0",
        "http://s3cret",
        "valkey://s3cret",
        "redis://s3cret:0",
        "redis://s3cret:65536",
        "redis://s3cret:port",
        "redis://a b",
        "redis://s3cret/zero",
        "redis://s3cret/1/2",
        "redis://s3cret/-1",
        "redis://s3cret/1?db=2",
        "redis://s3cret?db=",
        "redis://s3cret?timeout=3",
        "redis://s3cret#1",
        "redis://s3cret\n",
        "redis://[::1",
        "unix://s3cret/redis.sock",
        "unix:///",
        "unix://",
    ],
)
def test_anything_else_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(PydanticCustomError) as refused:
        parse_redis_url(written)
    assert "s3cret" not in refused.value.message()


def test_no_name_and_no_password_is_shown() -> None:
    shown = repr(parse_redis_url("rediss://someone:s3cret@redis.example"))
    assert "redis.example" in shown
    assert "s3cret" not in shown
    assert "someone" not in shown


@pytest.mark.parametrize("node", ["a:26379", "10.0.0.1:1", "[::1]:26379", "sentinel_1.example:65535"])
def test_a_sentinel_is_a_host_and_a_port(node: str) -> None:
    host, port = node.rsplit(":", 1)
    assert Sentinel(service="main", nodes=(node,)).addresses == ((host.strip("[]"), int(port)),)


@pytest.mark.parametrize(
    "node", ["a", "a:", ":1", "a:0", "a:65536", "::1:26379", "redis://a:1", "a b:1", "a:1/0"]
)
def test_anything_else_is_no_sentinel(node: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        Sentinel(service="main", nodes=(node,))
