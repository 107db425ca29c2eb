"""What the Kubernetes API says in lists and watches, in its own words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.discovery import Listing
from envoy_ext.domain.endpoint_slices import read_slice
from envoy_ext.domain.slice_watch import (
    LONGEST_MESSAGE,
    ApiStatus,
    BadAnswer,
    Bookmark,
    SliceCache,
    SliceDeleted,
    SlicePut,
    parse_event,
    parse_page,
    parse_status,
)
from tests.support.slices import pod, slice_of

EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (3171407)","reason":"Expired","code":410}}'
)
FORBIDDEN = (
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":'
    b'"endpointslices.discovery.k8s.io is forbidden: User \\"system:serviceaccount:ml:default\\" cannot list '
    b'resource \\"endpointslices\\" in API group \\"discovery.k8s.io\\" in the namespace \\"ml\\"",'
    b'"reason":"Forbidden","details":{"group":"discovery.k8s.io","kind":"endpointslices"},"code":403}'
)


def page(**changes: object) -> bytes:
    tree = {
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": "10245"},
        "items": [slice_of(pod("a", "10.0.0.1"))],
    }
    return json.dumps(tree | changes).encode()


def event(kind: str, changed: object) -> bytes:
    return json.dumps({"type": kind, "object": changed}).encode()


def test_a_list_gives_slices_and_where_to_watch_from() -> None:
    found = parse_page(page())
    assert ([one.name for one in found.slices], found.version, found.following) == (["vllm-abc"], "10245", "")
    assert parse_page(page(metadata={"resourceVersion": "7", "continue": "abc"})).following == "abc"
    assert parse_page(page(items=None)).slices == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"<html>",
        b"\xff",
        b"[" * 100_000,
        page(items={}),
        page(metadata={}),
        page(items=[{}]),
    ],
    ids=lambda body: body[:20],
)
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        parse_page(body)


def test_events_of_a_watch() -> None:
    changed = slice_of(pod("a", "10.0.0.1"), version="11020")
    assert parse_event(event("ADDED", changed)) == SlicePut(read_slice(changed))
    assert parse_event(event("MODIFIED", changed)) == SlicePut(read_slice(changed))
    assert parse_event(event("DELETED", changed)) == SliceDeleted("vllm-abc", "11020")
    marked = {"kind": "EndpointSlice", "metadata": {"resourceVersion": "12746"}}
    assert parse_event(event("BOOKMARK", marked)) == Bookmark("12746")
    assert parse_event(EXPIRED) == ApiStatus(410, "Expired", "too old resource version: 1 (3171407)")
    assert parse_event(event("SOMETHING_NEW", changed)) is None


@given(st.integers(1, 600))
def test_a_line_that_was_cut_is_no_event(length: int) -> None:
    line = event("ADDED", slice_of(pod("a", "10.0.0.1")))
    with pytest.raises(BadAnswer):
        parse_event(line[: min(length, len(line) - 1)])


def test_a_refusal_is_told_in_the_apis_words_cut_to_a_length() -> None:
    said = parse_status(403, FORBIDDEN)
    assert (said.code, said.reason) == (403, "Forbidden")
    assert "cannot list resource" in said.message
    long = json.dumps({"reason": "Invalid", "message": "x" * 10_000}).encode()
    assert len(parse_status(422, long).message) == LONGEST_MESSAGE
    assert parse_status(502, b"<html>bad gateway</html>") == ApiStatus(502, "", "")


# --- the slices at one version ----------------------------------------------------------------------


def names(cache: SliceCache) -> list[str]:
    told = cache.build_listing("http")
    assert isinstance(told, Listing)
    return [one.replica for one in told.members]


def test_events_change_the_slices_and_move_the_version() -> None:
    cache = SliceCache((read_slice(slice_of(pod("a", "10.0.0.1"))),), "1")
    assert cache.apply(SlicePut(read_slice(slice_of(pod("b", "10.0.0.2"), name="s2", version="2"))))
    assert (names(cache), cache.version) == (["a", "b"], "2")
    assert cache.apply(SlicePut(read_slice(slice_of(name="s2", version="3"))))
    assert (names(cache), cache.version) == (["a"], "3")
    assert not cache.apply(Bookmark("9"))
    assert cache.apply(SliceDeleted("vllm-abc", "10"))
    assert (names(cache), cache.version) == ([], "10")


def test_an_event_without_a_version_does_not_lose_the_one_that_is_known() -> None:
    cache = SliceCache((), "7")
    cache.apply(Bookmark(""))
    assert not cache.apply(SliceDeleted("nobody", ""))
    assert cache.version == "7"
