"""Replies that are put together by hand are, byte for byte, what protobuf makes of the same values."""

from collections.abc import Sequence
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envoy_ext.adapters import extproc_codec as codec

Pairs = Sequence[tuple[str, str]]

SIZES = (0, 1, 60, 100, 110, 118, 120, 122, 124, 126, 127, 128, 130, 16_370, 16_383, 16_384, 1 << 21)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=150)
PAIRS = st.lists(st.tuples(NAMES, st.text(st.characters(codec="utf-8"), max_size=200)), max_size=5)
REMOVED = st.lists(NAMES, max_size=4)


def change(mutation: Any, pairs: Pairs, removed: Sequence[str]) -> None:
    for name, value in pairs:
        header = HeaderValue(key=name, raw_value=value.encode("utf-8", "surrogateescape"))
        action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        mutation.set_headers.append(HeaderValueOption(header=header, append_action=action))
    if removed:
        mutation.remove_headers.extend(removed)


def reply(kind: str, pairs: Pairs = (), removed: Sequence[str] = (), body: bytes | None = None) -> bytes:
    response = ProcessingResponse()
    common = getattr(response, kind).response
    common.SetInParent()
    if pairs or removed:
        change(common.header_mutation, pairs, removed)
    if body is not None:
        common.body_mutation.body = body
    return bytes(response.SerializeToString())


@given(PAIRS, REMOVED)
@example([("x", "a\udcffb")], [])
@example([("x" * 65, "v" * 70)], ["y" * 65])
@settings(max_examples=300, deadline=None)
def test_changes_of_headers(pairs: Pairs, removed: Sequence[str]) -> None:
    assert codec.build_request_headers_reply(pairs, removed) == reply("request_headers", pairs, removed)
    assert codec.build_response_headers_reply(pairs, removed) == reply("response_headers", pairs, removed)
    assert codec.build_request_body_reply(pairs, removed) == reply("request_body", pairs, removed)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_of_a_value_and_of_a_body(size: int) -> None:
    pairs = [("x-a", "v" * size), ("x-b", "w" * size)]
    body = b"b" * size
    expected = reply("request_body", pairs, ["x-c"], body)
    assert codec.build_request_body_reply(pairs, ["x-c"], body) == expected
    assert codec.build_request_body_reply((), (), body) == reply("request_body", body=body)
    for end in (False, True):
        response = ProcessingResponse()
        streamed = response.response_body.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = body, end
        streamed.SetInParent()
        assert codec.build_streamed_body(body, end) == response.SerializeToString()


@given(PAIRS, st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_an_answer_in_envoys_place(pairs: Pairs, body: bytes) -> None:
    response = ProcessingResponse()
    response.immediate_response.status.code = 503
    response.immediate_response.body = body
    response.immediate_response.details = "why"
    change(response.immediate_response.headers, pairs, ())
    built = ProcessingResponse.FromString(codec.build_immediate_response(503, pairs, body, "why"))
    assert built == response


def test_replies_that_change_nothing() -> None:
    assert codec.build_response_body_reply() == reply("response_body")
    for kind, built in (
        ("request_trailers", codec.build_request_trailers_reply()),
        ("response_trailers", codec.build_response_trailers_reply()),
    ):
        response = ProcessingResponse()
        getattr(response, kind).SetInParent()
        assert built == response.SerializeToString()


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0, 1), (0.25, 250), (3600.0, 3_600_000)])
def test_patience(seconds: float, milliseconds: int) -> None:
    built = ProcessingResponse.FromString(codec.build_patience(seconds))
    assert built.override_message_timeout.ToMilliseconds() == milliseconds
