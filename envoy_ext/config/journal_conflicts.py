"""What does not go together in the `journal` section, each at the key that it is about."""

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic_core import PydanticCustomError

from envoy_ext.config.journal import RedisUrl, parse_redis_url
from envoy_ext.config.mistakes import Location

_OF_REDIS: Final[dict[str, tuple[object, ...]]] = {
    "url": (),
    "sentinel": (),
    "cluster": (False,),
    "username": (),
    "password_file": (),
    "ca_file": (),
    "cert_file": (),
    "key_file": (),
    "prefix": ("envoy-ext",),
    "wait_replicas": (0,),
    "wait_timeout": ("1s", 1, 1.0),
}
"""Keys that only a Redis journal has, with the values that say nothing."""
_OF_SQLITE: Final[dict[str, tuple[object, ...]]] = {
    "path": ("envoy-ext.db",),
    "synchronous": ("normal",),
}
_OF_REDIS_NEVER: Final[dict[str, tuple[object, ...]]] = {"max_bytes": ()}
_OF_TLS: Final = ("ca_file", "cert_file", "key_file")


def find_journal_conflicts(journal: Mapping[object, object]) -> Iterator[tuple[Location, str]]:
    """One location and message for each; whatever has the wrong form is passed over."""
    store = journal.get("store", "sqlite")
    if store in ("memory", "sqlite"):
        for key in _list_said(journal, _OF_REDIS):
            yield (
                ("journal", key),
                "only a redis journal has this key: set store: redis, or remove it",
            )
    if store == "redis":
        for key in _list_said(journal, _OF_SQLITE):
            yield ("journal", key), "only a sqlite journal has this key: remove it"
        for key in _list_said(journal, _OF_REDIS_NEVER):
            message = "Redis does not tell what a journal takes there: set journal.max_operations instead"
            yield ("journal", key), message
        yield from _find_place_conflicts(journal)
        yield from _find_login_conflicts(journal)
        if journal.get("wait_replicas", 0) == 0 and "wait_timeout" in _list_said(journal, _OF_REDIS):
            yield ("journal", "wait_timeout"), "is for journal.wait_replicas, which is 0: set that too"


def _find_place_conflicts(journal: Mapping[object, object]) -> Iterator[tuple[Location, str]]:
    sentinel, cluster = journal.get("sentinel"), journal.get("cluster") is True
    if journal.get("url") is None and sentinel is None:
        yield (
            ("journal", "url"),
            "missing: name the server, such as rediss://redis.example:6379, or set journal.sentinel",
        )
    if journal.get("url") is not None and sentinel is not None:
        yield (
            ("journal", "url"),
            "must be left out, since journal.sentinel finds the server (TLS there: journal.sentinel.tls)",
        )
    if cluster and sentinel is not None:
        yield ("journal", "cluster"), "a cluster has no sentinels: keep one of the two"
    url = _read_url(journal)
    if cluster and url is not None and url.socket is not None:
        yield ("journal", "url"), "a cluster is not reached over one socket: name a node by host and port"
    if cluster and url is not None and url.db != 0:
        yield ("journal", "url"), "a cluster has no other database than 0: remove it"
    if url is not None and not url.tls:
        for key in _list_said(journal, _OF_REDIS):
            if key in _OF_TLS:
                yield ("journal", key), "is for TLS: write rediss:// in journal.url, or remove it"
    if isinstance(sentinel, Mapping) and sentinel.get("tls", False) is False:
        for key in _list_said(journal, _OF_REDIS):
            if key in _OF_TLS:
                yield ("journal", key), "is for TLS: set journal.sentinel.tls, or remove it"


def _find_login_conflicts(journal: Mapping[object, object]) -> Iterator[tuple[Location, str]]:
    url = _read_url(journal)
    for key, in_url in (
        ("username", url is not None and url.username),
        ("password_file", url is not None and url.password),
    ):
        if in_url and journal.get(key) is not None:
            yield ("journal", key), "journal.url has one too: keep one of the two"
    named = journal.get("username") is not None or (url is not None and url.username)
    if named and journal.get("password_file") is None and not (url is not None and url.password):
        yield ("journal", "password_file"), "missing: a user name comes with a password"
    for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if journal.get(key) is not None and journal.get(other) is None:
            yield ("journal", other), f"missing: it goes with journal.{key}"
    sentinel = journal.get("sentinel")
    if (
        isinstance(sentinel, Mapping)
        and sentinel.get("username") is not None
        and sentinel.get("password_file") is None
    ):
        yield ("journal", "sentinel", "password_file"), "missing: a user name comes with a password"


def _list_said(journal: Mapping[object, object], keys: Mapping[str, tuple[object, ...]]) -> list[str]:
    """Those of the keys that the file gives another value than the one that says nothing."""
    return [
        key
        for key, silent in keys.items()
        if journal.get(key) is not None
        and not any(journal[key] == one and type(journal[key]) is type(one) for one in silent)
    ]


def _read_url(journal: Mapping[object, object]) -> RedisUrl | None:
    url = journal.get("url")
    if not isinstance(url, str):
        return None
    try:
        return parse_redis_url(url)
    except PydanticCustomError:
        return None
