"""The client's side: its table, and that bytes leave whole events at a time and unchanged."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.delivery import TRANSITIONS, Delivery, DeliveryState
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.events import ResponseStarted
from envoy_ext.domain.inspection import BodyKind, Verdict
from tests.support.exchange_builders import (
    JSON,
    NDJSON,
    SSE,
    abort,
    answer,
    delta,
    done,
    engine_error,
    finish,
    ping,
    role,
    usage,
)

S = DeliveryState
MOVES = {
    (S.NEW, S.QUEUED),
    (S.QUEUED, S.FORWARDED),
    (S.QUEUED, S.ENDED),
    (S.NEW, S.FORWARDED),
    (S.NEW, S.ENDED),
    (S.FORWARDED, S.OPENING),
    (S.FORWARDED, S.ENDED),
    (S.OPENING, S.RESPONDING),
    (S.OPENING, S.ENDED),
    (S.RESPONDING, S.ENDED),
}


def started(status=200, kind=SSE, encoding=""):
    return ResponseStarted(status, kind, encoding, replay_mark=False, refusal=None, end=False)


def opening(kind=SSE, status=200, choices=1, limit=1 << 20, encoding=""):
    delivery = Delivery(ApiFamily.CHAT, choices, limit)
    delivery.forward()
    delivery.start(started(status, kind, encoding))
    return delivery


def responding(**options):
    delivery = opening(**options)
    delivery.open()
    return delivery


def fed(*chunks, **options):
    delivery = responding(**options)
    for data in chunks:
        delivery.take(data)
    return delivery


@pytest.mark.parametrize("to", list(DeliveryState))
@pytest.mark.parametrize("state", list(DeliveryState))
def test_every_move_from_every_state_follows_the_table_or_is_impossible(state, to):
    delivery = Delivery(ApiFamily.CHAT, 1, 1 << 20, state=state)
    if (state, to) in MOVES:
        delivery.move(to)
        assert delivery.state is to
    else:
        with pytest.raises(ImpossibleEvent, match=f"is {state} and cannot become {to}"):
            delivery.move(to)
        assert delivery.state is state


def test_the_table_has_a_row_for_every_state():
    assert set(TRANSITIONS) == set(DeliveryState)


@pytest.mark.parametrize("state", list(DeliveryState))
@pytest.mark.parametrize("closed", [True, False])
def test_a_client_waits_until_it_has_left_or_had_its_last_byte(state, closed):
    delivery = Delivery(ApiFamily.CHAT, 1, 1 << 20, state=state, closed=closed)
    assert delivery.client_waiting is (not closed and state is not S.ENDED)


def test_a_body_without_headers_is_a_bug_of_ours():
    with pytest.raises(ImpossibleEvent):
        Delivery(ApiFamily.CHAT, 1, 1 << 20).take(b"x")
    with pytest.raises(ImpossibleEvent):
        Delivery(ApiFamily.CHAT, 1, 1 << 20).judge_end()


@pytest.mark.parametrize(
    ("options", "last"),
    [
        pytest.param({}, delta("Hel"), id="a first delta"),
        pytest.param({}, engine_error(), id="an error"),
        pytest.param({}, done(), id="the end"),
        pytest.param({"kind": NDJSON}, delta("Hel")[6:-1], id="a first line"),
        pytest.param({"limit": 400}, b"data: " + b"x" * 500, id="an event above the bound"),
        pytest.param({"limit": 400}, 80 * ping(), id="more than the bound of anything"),
    ],
)
def test_nothing_leaves_before_there_is_something_to_read(options, last):
    delivery = opening(**options)
    before = b"" if options.get("kind") == NDJSON else ping() + role() + usage(3)
    assert delivery.take(before) == b""
    assert not delivery.readable
    assert delivery.last_word is None
    assert (delivery.released_bytes, delivery.output_tokens) == (0, 0)
    assert delivery.take(last) == before + last
    assert delivery.readable


@pytest.mark.parametrize("said", [answer("Hel"), delta("Hel") + finish(), abort()])
def test_a_last_word_that_is_still_held_has_not_been_said_to_the_client(said):
    delivery = opening()
    delivery.take(said)
    assert delivery.last_word is None


def test_half_an_event_waits_for_its_rest():
    delivery = responding()
    whole = delta("Hel")
    assert delivery.take(whole[:10]) == b""
    assert delivery.take(whole[10:-1]) == b""
    assert delivery.take(whole[-1:] + ping()[:3]) == whole
    assert delivery.take(ping()[3:]) == ping()
    assert delivery.released_bytes == len(whole + ping())


def test_what_was_held_back_goes_out_as_it_is_at_an_orderly_end():
    delivery = fed(delta("Hel"), b"data: {")
    assert delivery.take_tail() == b"data: {"
    assert delivery.take_tail() == b""
    assert delivery.released_bytes == len(delta("Hel") + b"data: {")


@pytest.mark.parametrize(
    "options", [{"kind": JSON}, {"kind": "text/plain"}, {"encoding": "gzip"}, {"status": 400}]
)
def test_bytes_of_no_event_stream_wait_for_nothing(options):
    delivery = responding(**options)
    assert delivery.take(b"data: {") == b"data: {"
    assert not delivery.may_append


def test_above_the_bound_nothing_is_held_any_more_and_nothing_is_added():
    delivery = responding(limit=100)
    assert delivery.may_append
    assert delivery.take(b"data: " + b"x" * 50) == b""
    assert delivery.take(b"x" * 60) == b"data: " + b"x" * 110
    assert delivery.take(b"x") == b"x"
    assert not delivery.may_append
    assert delivery.last_word is None


@given(
    events=st.lists(
        st.sampled_from([role(), ping(), delta("Hel"), delta("é€𝄞"), usage(3), finish(), done()])
    ),
    sizes=st.lists(st.integers(1, 60), min_size=1),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
@settings(max_examples=150, deadline=None)
def test_bytes_leave_unchanged_in_whole_events_whatever_the_chunks(events, sizes, line_end):
    """What was let out is always a prefix of what came, and never ends inside a line."""
    body = b"".join(events).replace(b"\n", line_end)
    delivery = responding()
    out, at, turn = b"", 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        out += delivery.take(body[at : at + size])
        at, turn = at + size, turn + 1
        assert body.startswith(out)
        assert out == b"" or out.endswith((b"\n", b"\r"))
        assert delivery.released_bytes == len(out)
        assert delivery.received_bytes == min(at, len(body))
    assert out + delivery.take_tail() == body


@pytest.mark.parametrize(
    ("chunks", "said", "word"),
    [
        pytest.param([], False, None, id="nothing"),
        pytest.param([role(), delta("Hel")], False, None, id="a part"),
        pytest.param([delta("Hel"), finish()], False, Verdict.COMPLETE, id="a finish"),
        pytest.param([answer("Hel")], True, Verdict.COMPLETE, id="a whole answer"),
        pytest.param([delta("Hel"), done()], True, Verdict.NO_FINISH, id="a bare DONE"),
        pytest.param([delta("Hel"), engine_error()], True, Verdict.ERRORED, id="an error"),
        pytest.param([delta("Hel"), abort()], False, Verdict.ABORTED, id="an abort"),
        pytest.param([delta("Hel"), finish()[:-1]], False, None, id="a finish that is not whole"),
    ],
)
def test_when_the_replica_has_said_its_last_word(chunks, said, word):
    delivery = fed(*chunks)
    assert delivery.last_word_said is said
    assert delivery.last_word is word
    assert delivery.whole_answer_passed is (word is Verdict.COMPLETE)


def test_a_whole_answer_of_two_choices_needs_both_to_finish():
    assert not fed(delta("a", 0), finish("stop", 0), choices=2).whole_answer_passed
    assert fed(
        delta("a", 0), finish("stop", 0), delta("b", 1), finish("stop", 1), choices=2
    ).whole_answer_passed


@pytest.mark.parametrize("kind", [JSON, "text/plain"])
def test_a_document_has_no_last_word_before_its_end(kind):
    assert fed(b"{}", kind=kind).last_word is None


def test_a_last_line_that_is_still_held_back_is_no_last_word():
    line = b'{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":"stop"}]}'
    assert fed(line, kind=NDJSON).last_word is None
    assert fed(line + b"\n", kind=NDJSON).last_word is Verdict.COMPLETE


def test_before_any_headers_nothing_is_known_and_nothing_breaks():
    delivery = Delivery(ApiFamily.CHAT, 1, 1 << 20)
    assert (delivery.received_bytes, delivery.deltas, delivery.output_tokens) == (0, 0, 0)
    assert (delivery.malformed_events, delivery.model_revision, delivery.last_word) == (0, None, None)
    assert not any([delivery.first_delta_passed, delivery.last_word_said, delivery.may_append])
    assert delivery.kind is BodyKind.OPAQUE
