"""The inspector never raises, and no chunking changes what it says, for any API and any bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.inspection import BodyKind, Inspector, Verdict
from tests.domain.inspecting import DATA, observe

EVENTS = [
    event + b"\n\n"
    for path in sorted((DATA / "sse").glob("*.sse"))
    for event in path.read_bytes().split(b"\n\n")
]
DAMAGE = [
    b"",
    b"\n",
    b"\r",
    b"data: {}",
    b"data: [DONE]\n\n",
    b"[[[[",
    b"\xff",
    b'"',
    b"null\n\n",
    b"9" * 4400,
]

bodies = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from(EVENTS + DAMAGE), max_size=12).map(b"".join),
)
kinds = st.sampled_from(BodyKind)
limits = st.sampled_from([0, 64, 300, 1 << 20])


@given(bodies, st.sampled_from(ApiFamily), kinds, limits, st.integers(1, 3), st.data())
@settings(max_examples=400, deadline=None)
def test_any_bytes_in_any_chunks(body, family, kind, limit, choices, data):
    cut = data.draw(st.integers(0, len(body)))
    whole, halves = (Inspector(family, kind, limit, choices=choices) for _ in range(2))
    whole.feed(body)
    halves.feed(body[:cut])
    halves.feed(body[cut:])
    assert observe(whole) == observe(halves)


@given(
    st.lists(st.sampled_from(EVENTS + DAMAGE), max_size=12).map(b"".join), st.sampled_from(ApiFamily), kinds
)
@settings(max_examples=200, deadline=None)
def test_what_was_seen_stays_seen(body, family, kind):
    inspector = Inspector(family, kind, 1 << 20)
    step = max(1, len(body) // 40)
    before = observe(inspector)
    for start in range(0, len(body), step):
        inspector.feed(body[start : start + step])
        after = observe(inspector)
        for growing in (
            "deltas",
            "first_delta_seen",
            "error_before_delta",
            "malformed_events",
            "done_marker",
        ):
            assert after[growing] >= before[growing]
        assert before["error"] in (None, after["error"])
        assert before["watching"] >= after["watching"]
        assert before["boundary"] <= after["boundary"] <= after["received"]
        before = after


@given(bodies, st.sampled_from(ApiFamily), kinds, limits)
@settings(max_examples=300, deadline=None)
def test_nothing_that_failed_or_was_not_watched_is_complete(body, family, kind, limit):
    inspector = Inspector(family, kind, limit)
    inspector.feed(body)
    verdict = inspector.verdict_at_eof()
    if inspector.error is not None or not inspector.watching:
        assert verdict is not Verdict.COMPLETE
    if inspector.error_before_delta:
        assert verdict is Verdict.ERRORED
