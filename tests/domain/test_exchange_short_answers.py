"""An end that looks orderly and is none is told; and whoever speaks first, the ending is the same."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.events import ResponseBody
from envoy_ext.domain.outcomes import Ending, Reason
from envoy_ext.domain.records import OperationEnded
from tests.support.exchange_builders import (
    NDJSON,
    Policy,
    Req,
    ReqChat,
    abort,
    delta,
    done,
    engine_error,
    finish,
    role,
    usage,
    validation_error,
)
from tests.support.exchange_claims import BEGUN, assert_interrupted, begun
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, EXCHANGE_LOG, Envoy

# --- an orderly end that is none ----------------------------------------------------------------


def test_a_silent_truncation_is_told():
    envoy = begun()
    envoy.replica.ends()
    assert_interrupted(envoy, BEGUN, Reason.TRUNCATED)
    assert envoy.outcomes == ["truncated"]


def test_a_truncation_inside_an_event_is_told_and_the_half_event_dropped():
    envoy = begun(delta("lo")[:-1])
    envoy.replica.ends()
    assert_interrupted(envoy, BEGUN, Reason.TRUNCATED)


def test_a_truncation_that_ends_in_trailers_keeps_them():
    envoy = begun()
    envoy.receive(ResponseBody(b"", end=True, trailers=True))
    bodies = [reply for reply in envoy.replies if isinstance(reply, step.ForwardBody)]
    assert (bodies[-1].end, bodies[-1].trailers) == (True, True)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        pytest.param(done(), Reason.TRUNCATED, id="a bare DONE"),
        pytest.param(engine_error() + done(), Reason.ENGINE_ERROR, id="an error, then DONE"),
        pytest.param(engine_error(), Reason.ENGINE_ERROR, id="an error"),
        pytest.param(abort() + done(), Reason.ENGINE_ERROR, id="an abort, then DONE"),
    ],
)
def test_an_end_that_nothing_can_be_added_to_is_passed_unchanged_and_is_no_success(tail, reason):
    envoy = begun(tail)
    envoy.replica.ends()
    assert bytes(envoy.client.body) == BEGUN + tail
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, reason)
    assert (envoy.end.state, envoy.end.error_code) == ("failed", None)
    assert envoy.started == 1


@pytest.mark.parametrize("end", [finish() + done(), abort() + done(), done(), engine_error()])
def test_what_follows_a_last_word_passes_unread_and_whole(end):
    envoy = begun(end + b"data: {not a whole ev")
    envoy.replica.ends()
    assert bytes(envoy.client.body) == BEGUN + end + b"data: {not a whole ev"


def test_a_validation_error_behind_a_delta_is_no_answer_to_the_client():
    """Part of an answer is out: whoever is at fault, it was not given whole."""
    envoy = begun(validation_error())
    envoy.replica.ends()
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.ENGINE_ERROR)


def test_an_abort_with_unwatched_bytes_behind_it_gets_nothing_added():
    envoy = begun(abort(), policy=Policy(max_event_bytes=400))
    unwatched = b"data: " + b"x" * 500
    envoy.replica.sends(unwatched, end=True)
    assert bytes(envoy.client.body) == BEGUN + abort() + unwatched
    assert (envoy.client.ended, envoy.client.reset) == (True, False)
    assert envoy.end.reason is Reason.ENGINE_ERROR


def test_a_stream_of_an_api_that_is_not_known_may_end_as_it_likes():
    envoy = Envoy(Req(ApiFamily.OTHER, "/events"))
    envoy.replica.answers(b"data: tick\n\n", b"data: to", end=True)
    assert bytes(envoy.client.body) == b"data: tick\n\ndata: to"
    assert envoy.end.ending is Ending.UNKNOWN


def test_a_last_line_of_json_needs_no_newline_at_an_orderly_end():
    envoy = Envoy(ReqChat())
    body = b'{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":"stop"}]}'
    envoy.replica.answers(body[:9], body[9:], type=NDJSON, end=True)
    assert bytes(envoy.client.body) == body
    assert envoy.end.ending is Ending.FINISHED


def test_nothing_is_waited_for_behind_the_typed_event_but_the_last_evidence():
    envoy = begun(late=(ATTEMPT_LOG, EXCHANGE_LOG))
    envoy.replica.is_lost()
    envoy.catch_up(ATTEMPT_LOG)
    assert envoy.exchange.next_deadline() == envoy.now + envoy.policy.settle_s


@pytest.mark.parametrize("tail", [b"", finish() + done(), engine_error()])
def test_the_end_of_a_broken_stream_is_said_once_and_recorded_with_it(tail):
    """Also while the end of the client's stream is not heard of, and the grace runs out."""
    envoy = begun(tail, late=(ATTEMPT_LOG,))
    envoy.manual = True
    envoy.replica.is_lost()
    envoy.deliver(ATTEMPT_LOG)
    assert envoy.client.ended
    (last,) = [s for s in envoy.steps if any(isinstance(r, step.ForwardBody) and r.end for r in s.replies)]
    assert any(isinstance(record, OperationEnded) for record in last.records)
    before = len(envoy.replies)
    envoy.wait(2.0)
    assert len(envoy.replies) == before


def test_an_answer_that_was_lost_before_its_first_delta_came_is_given_up_once():
    envoy = Envoy(manual=True)
    envoy.deliver("attempt 1")
    envoy.replica.passes = 0
    envoy.replica.answers(role(), delta("Hel"))
    for source in (*["attempt 1"] * 3, ATTEMPT_LOG, DELIVERY):
        envoy.deliver(source)
    assert envoy.client.code == "upstream_unavailable"
    before = len(envoy.replies)
    envoy.wait(2.0)
    assert len(envoy.replies) == before


def test_an_abort_without_done_would_look_whole_and_is_told():
    envoy = begun(abort())
    envoy.replica.ends()
    assert_interrupted(envoy, BEGUN + abort(), Reason.ENGINE_ERROR)


def test_one_of_two_choices_cut_is_not_a_whole_answer():
    envoy = Envoy(ReqChat(n=2))
    body = delta("Hel", 0) + delta("Hel", 1) + finish("stop", 0)
    envoy.replica.answers(body, end=True)
    assert_interrupted(envoy, body, Reason.TRUNCATED, tokens=2)


def test_the_engines_own_count_of_tokens_is_told_where_it_states_one():
    envoy = begun(usage(41), delta("lo"))
    envoy.replica.is_lost()
    assert_interrupted(envoy, BEGUN + usage(41) + delta("lo"), Reason.REPLICA_DIED, tokens=42)


# --- whoever speaks first -----------------------------------------------------------------------


def test_the_client_seeing_the_engines_error_and_leaving_does_not_make_it_the_clients_doing():
    """SDKs raise at an error event and close the connection without reading its end."""
    envoy = begun(engine_error())
    envoy.client_leaves()
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.ENGINE_ERROR)


@pytest.mark.parametrize("last", [finish() + done(), finish()])
def test_a_client_that_leaves_at_the_terminal_mark_was_given_a_whole_answer(last):
    envoy = begun(last)
    envoy.client_leaves()
    assert envoy.end.ending is Ending.FINISHED
    assert envoy.outcomes == ["completed"]


def test_a_client_that_leaves_behind_a_bare_done_was_not():
    envoy = begun(done())
    envoy.client_leaves()
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.TRUNCATED)


def test_a_replica_that_broke_before_its_client_left_is_the_first_cause():
    envoy = begun(late=(ATTEMPT_LOG, EXCHANGE_LOG, DELIVERY))
    envoy.replica.is_lost()
    envoy.client_leaves()
    for source in (DELIVERY, EXCHANGE_LOG):
        envoy.catch_up(source)
    assert envoy.end is None
    envoy.catch_up(ATTEMPT_LOG)
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.REPLICA_DIED)
