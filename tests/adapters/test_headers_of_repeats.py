"""What is read of a repeat's wish, and which headers of an answer are kept for it."""

from hashlib import sha256

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue

from envoy_ext.adapters import headers as h


def header_map(*headers: tuple[str, str]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=name, raw_value=value.encode()) for name, value in headers])


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (["wait=10"], 10.0),
        (["Wait=0"], 0.0),
        (['wait="7"'], 7.0),
        (["respond-async, wait=10; strict"], 10.0),
        (["respond-async", "wait = 3"], 3.0),
        (["wait=1, wait=9"], 1.0),
        (["wait"], None),
        (["wait="], None),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait=\u0663"], None),
        (["wait=1000000000"], None),
        (["awaits=3"], None),
        ([""], None),
        ([], None),
    ],
)
def test_the_wish_to_wait_is_read_as_the_rfc_has_it(given: list[str], seconds: float | None) -> None:
    headers = h.read_headers(header_map(*(("Prefer", one) for one in given)))
    assert h.read_prefer_wait_s(headers) == seconds


def test_of_other_names_that_stand_twice_the_first_counts() -> None:
    twice = header_map(("idempotency-key", "one"), ("idempotency-key", "two"))
    assert h.read_idempotency_key(h.read_headers(twice)) == "one"


def read_caller(*headers: tuple[str, str]) -> str:
    return h.read_caller(h.read_headers(header_map(*headers)))


def test_callers_who_share_one_credential_and_differ_in_another_are_two() -> None:
    shared = ("authorization", "Basic proxy")
    anna, ben = ("x-api-key", "anna"), ("x-api-key", "ben")
    callers = [
        read_caller(*headers)
        for headers in (
            *([shared], [anna], [shared, anna], [shared, ben], [anna, ("api-key", "ben")]),
            *([shared, ("authorization", "Bearer anna")], [shared, ("authorization", "Bearer ben")]),
        )
    ]
    assert len(set(callers)) == len(callers)
    assert read_caller(anna, shared) == read_caller(shared, anna), "their order says nothing"
    assert read_caller(("authorization", "")) == read_caller() == ""


def test_the_caller_of_one_credential_is_who_it_was_in_journals_of_earlier_releases() -> None:
    assert read_caller(("authorization", "Bearer k")) == sha256(b"Bearer k").hexdigest()[:32]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_key_counts_only_where_something_is_asked_to_be_done(method: str) -> None:
    assert h.read_idempotency_key({":method": method, "idempotency-key": "k"}) is None
    assert h.read_idempotency_key({":method": "POST", "idempotency-key": "k"}) == "k"


def test_headers_of_the_answer_are_kept_and_those_of_the_exchange_or_the_client_are_not() -> None:
    kept = [("content-type", "application/json"), ("x-engine", "a"), ("etag", '"1"')]
    left_out = [
        *((":status", "200"), ("connection", "close"), ("keep-alive", "5"), ("transfer-encoding", "chunked")),
        *(("trailer", "x"), ("upgrade", "h2c"), ("content-length", "5"), ("te", "trailers")),
        *(("set-cookie", "a=b"), ("date", "now"), ("server", "uvicorn"), ("age", "1")),
        *(("x-request-id", "r"), ("x-operation-id", "o"), ("x-attempt-count", "1")),
        *(("x-envoy-ext-replay", "1"), ("x-envoy-upstream-service-time", "3")),
        *(("idempotent-replayed", "true"), ("preference-applied", "wait=1")),
    ]
    assert h.list_kept(header_map(*left_out, *kept)) == tuple(kept)
    upper = [(name.upper(), value) for name, value in left_out]
    assert h.list_kept(header_map(*upper)) == ()


def test_a_name_that_stands_twice_is_kept_as_one() -> None:
    assert h.list_kept(header_map(("link", "<a>"), ("vary", "x"), ("Link", "<b>"))) == (
        ("link", "<a>, <b>"),
        ("vary", "x"),
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["respond-async"], True),
        (["Respond-Async; foo=bar, wait=10"], True),
        (["wait=10", "respond-async"], True),
        (["respond-async=true"], True),
        (["respond-async=false"], False),
        (["respond-asynchronously"], False),
        (["wait=respond-async"], False),
        (['a="b, respond-async, c"'], False),
        (['a="b \\", respond-async, c"'], False),
        (['a="b, c", respond-async'], True),
        ([",, ,respond-async,"], True),
        (['a="b, respond-async'], False),
        ([], False),
    ],
)
def test_the_wish_to_come_back_is_read_as_the_rfc_has_it(given: list[str], wanted: bool) -> None:
    headers = h.read_headers(header_map(*(("Prefer", one) for one in given)))
    assert h.prefers_async(headers) is wanted


@pytest.mark.parametrize(
    ("headers", "too_many"),
    [
        ([(":path", "/"), *((f"x-{number}", "") for number in range(100))], False),
        ([(":path", "/"), *((f"x-{number}", "") for number in range(101))], True),
        # Lengths and tags of the message do not count, only names and values.
        ([(f"{number:010}", "v" * 1014) for number in range(60)], False),
        ([(f"{number:010}", "v" * 1014) for number in range(60)] + [("y", "")], True),
        ([("x", "v" * h.MAX_HEADERS_BYTES)], True),
    ],
)
def test_where_a_client_has_too_many_headers(headers: list[tuple[str, str]], too_many: bool) -> None:
    assert h.are_too_many(header_map(*headers)) is too_many


def test_what_no_replica_may_see_of_a_clients_headers() -> None:
    allowed = ("x-envoy", "x-request-id", "envoy-x", "operation-id")
    forged = ("x-envoy-", "x-envoy-retry-on", "x-ext-mesh-attempt", "x-operation-id", "x-attempt-id")
    assert set(h.list_forged([*allowed, *forged])) == set(forged)
    assert set(h.list_hostile([*allowed, *forged])) == set(forged[:3])
