"""The same evidence gives the same ending, in whatever order it comes, and an ending is not taken back."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envoy_ext.domain.ending import (
    BROKE,
    Evidence,
    Resolution,
    read_outcome,
    read_reason,
    read_state,
    resolve,
    resolve_at_deadline,
)
from envoy_ext.domain.events import LogCause
from envoy_ext.domain.inspection import Verdict
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason

FINISHED = Resolution(Ending.FINISHED)
CLIENT_GONE = Resolution(Ending.CLIENT_GONE)
REFUSED = Resolution(Ending.REFUSED)
UNKNOWN = Resolution(Ending.UNKNOWN)


def broke(reason=None):
    return Resolution(Ending.UPSTREAM_BROKE, reason)


GONE, RESET, TIMEOUT = LogCause.DOWNSTREAM_GONE, LogCause.UPSTREAM_RESET, LogCause.UPSTREAM_TIMEOUT

# --- the rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "resolution"),
    [
        pytest.param(Evidence(), None, id="no word yet"),
        pytest.param(Evidence(released=True), None, id="an answer on its way"),
        pytest.param(Evidence(closed=True), None, id="a stream's end is no verdict"),
        pytest.param(Evidence(exchange_cause=GONE), None, id="a log is none before the stream's end"),
        pytest.param(Evidence(released=True, attempt_cause=RESET), None, id="nor is the other"),
        pytest.param(Evidence(refused=True), REFUSED, id="our own no"),
        pytest.param(
            Evidence(refused=True, interrupted=Reason.DEADLINE),
            Resolution(Ending.REFUSED, Reason.DEADLINE),
            id="our own no, in time",
        ),
        pytest.param(Evidence(failed=True), broke(), id="our error after failures"),
        pytest.param(
            Evidence(failed=True, interrupted=Reason.TRUNCATED), broke(Reason.TRUNCATED), id="and why"
        ),
        pytest.param(
            Evidence(released=True, interrupted=Reason.REPLICA_DIED),
            broke(Reason.REPLICA_DIED),
            id="our typed event",
        ),
        pytest.param(
            Evidence(released=True, interrupted=Reason.CLIENT_STALLED),
            Resolution(Ending.CLIENT_GONE, Reason.CLIENT_STALLED),
            id="a client that took nothing",
        ),
        pytest.param(
            Evidence(released=True, interrupted=Reason.CLIENT_STALLED, attempt_cause=RESET, closed=True),
            Resolution(Ending.CLIENT_GONE, Reason.CLIENT_STALLED),
            id="whatever its replica did then",
        ),
        pytest.param(Evidence(released=True, passed_end=Verdict.COMPLETE), FINISHED, id="a whole answer"),
        pytest.param(
            Evidence(released=True, passed_end=Verdict.TRUNCATED), broke(Reason.TRUNCATED), id="a short one"
        ),
        pytest.param(
            Evidence(released=True, passed_end=Verdict.NO_FINISH), broke(Reason.TRUNCATED), id="a bare DONE"
        ),
        pytest.param(
            Evidence(released=True, passed_end=Verdict.ABORTED), broke(Reason.ENGINE_ERROR), id="an abort"
        ),
        pytest.param(
            Evidence(released=True, passed_end=Verdict.ERRORED), broke(Reason.ENGINE_ERROR), id="an error"
        ),
        pytest.param(Evidence(released=True, passed_end=Verdict.UNKNOWN), UNKNOWN, id="nobody watched"),
        pytest.param(
            Evidence(released=True, client_error=True, passed_end=Verdict.ERRORED),
            FINISHED,
            id="the client's own mistake",
        ),
        pytest.param(
            Evidence(released=True, client_error=True, last_word=Verdict.ERRORED, closed=True),
            FINISHED,
            id="the client's own mistake, read and left",
        ),
        pytest.param(
            Evidence(released=True, last_word=Verdict.COMPLETE),
            None,
            id="a last word may be followed by the end",
        ),
        pytest.param(
            Evidence(released=True, last_word=Verdict.COMPLETE, closed=True),
            FINISHED,
            id="closed at the terminal mark",
        ),
        pytest.param(
            Evidence(released=True, last_word=Verdict.ERRORED, closed=True, exchange_cause=GONE),
            broke(Reason.ENGINE_ERROR),
            id="closed at an error",
        ),
        pytest.param(
            Evidence(released=True, closed=True, exchange_cause=GONE),
            None,
            id="the attempt log may tell more",
        ),
        pytest.param(
            Evidence(released=True, closed=True, attempt_cause=GONE),
            None,
            id="the exchange log may tell more",
        ),
        pytest.param(
            Evidence(released=True, closed=True, attempt_cause=GONE, exchange_cause=GONE),
            CLIENT_GONE,
            id="a client that left",
        ),
        pytest.param(
            Evidence(released=True, closed=True, attempt_cause=RESET, exchange_cause=GONE),
            broke(Reason.REPLICA_DIED),
            id="a replica that broke first",
        ),
        pytest.param(
            Evidence(released=True, closed=True, attempt_cause=TIMEOUT),
            broke(Reason.NETWORK_PARTITION),
            id="a network that broke",
        ),
        pytest.param(
            Evidence(closed=True, exchange_cause=GONE), CLIENT_GONE, id="a client that left before an answer"
        ),
        pytest.param(
            Evidence(
                released=True, closed=True, attempt_cause=LogCause.COMPLETED, exchange_cause=LogCause.OTHER
            ),
            None,
            id="logs that do not say",
        ),
    ],
)
def test_what_evidence_amounts_to(evidence, resolution):
    assert resolve(evidence) == resolution


@pytest.mark.parametrize(
    ("evidence", "resolution"),
    [
        (Evidence(), UNKNOWN),
        (Evidence(closed=True), UNKNOWN),
        (Evidence(exchange_cause=GONE), UNKNOWN),
        (Evidence(released=True, closed=True), UNKNOWN),
        (Evidence(released=True, closed=True, exchange_cause=GONE), CLIENT_GONE),
        (Evidence(released=True, closed=True, attempt_cause=GONE), CLIENT_GONE),
        (Evidence(closed=True, attempt_cause=GONE), CLIENT_GONE),
        (Evidence(closed=True, attempt_cause=RESET), UNKNOWN),
        (Evidence(released=True, attempt_cause=RESET), broke(Reason.REPLICA_DIED)),
        (Evidence(released=True, closed=True, attempt_cause=LogCause.COMPLETED), UNKNOWN),
        (Evidence(released=True, passed_end=Verdict.COMPLETE), FINISHED),
    ],
)
def test_silence_is_unknown_and_never_success(evidence, resolution):
    assert resolve_at_deadline(evidence) == resolution


# --- order --------------------------------------------------------------------------------------

causes = st.none() | st.sampled_from(LogCause)


@st.composite
def facts_in_some_order(draw):
    """Facts as an exchange learns them: its own ones in their order, the logs' anywhere between."""
    own = []
    if draw(st.booleans()):
        own.append({"released": True, "client_error": draw(st.booleans())})
        end = draw(
            st.sampled_from([None, "interrupted", "failed", *Verdict])  # failed: the release reached nobody
        )
        if isinstance(end, Verdict):
            own.append({"passed_end": end})
        elif end == "interrupted":
            own.append({"interrupted": draw(st.sampled_from(Reason))})
        elif end == "failed":
            own.append({"failed": True, "interrupted": draw(st.none() | st.sampled_from(Reason))})
    elif draw(st.booleans()):
        who = draw(st.sampled_from(["refused", "failed"]))
        own.append({who: True, "interrupted": draw(st.none() | st.sampled_from(Reason))})
    if draw(st.booleans()):
        word = draw(st.none() | st.sampled_from(Verdict)) if own else None
        own.append({"closed": True, "last_word": word})
    logs = [{"attempt_cause": draw(causes)}, {"exchange_cause": draw(causes)}]
    order = list(own)
    for log in logs:
        order.insert(draw(st.integers(0, len(order))), log)
    return order


@given(facts_in_some_order(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_any_order_and_any_repetition_of_the_same_facts_gives_the_same_ending(facts, random):
    evidence, shuffled = Evidence(), Evidence()
    for fact in facts:
        evidence = replace(evidence, **fact)
    again = facts + [random.choice(facts) for _ in range(3)] if facts else []
    random.shuffle(again)
    for fact in again:
        shuffled = replace(shuffled, **fact)
    assert resolve(shuffled) == resolve(evidence)
    assert resolve_at_deadline(shuffled) == resolve_at_deadline(evidence)


@given(facts_in_some_order())
@settings(max_examples=300, deadline=None)
def test_an_ending_once_given_is_not_taken_back_by_what_comes_later(facts):
    evidence, given_ = Evidence(), None
    for fact in facts:
        evidence = replace(evidence, **fact)
        resolution = resolve(evidence)
        if given_ is not None:
            assert resolution == given_
        given_ = given_ or resolution
    if given_ is not None:
        assert resolve_at_deadline(evidence) == given_


@given(facts_in_some_order())
@settings(max_examples=300, deadline=None)
def test_success_is_never_read_from_logs_alone(facts):
    evidence = Evidence()
    for fact in facts:
        evidence = replace(evidence, **fact)
    if resolve_at_deadline(evidence).ending is Ending.FINISHED:
        assert evidence.passed_end is not None or evidence.last_word is not None


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", list(LogCause))
def test_every_log_cause_has_an_outcome_and_only_failures_are_breaks(cause):
    outcome = read_outcome(cause)
    died = (AttemptOutcome.REPLICA_DIED, AttemptOutcome.NETWORK_PARTITION)
    assert (outcome in died) is (cause in BROKE)


def test_only_silence_leaves_open_whether_the_replica_lives():
    silent = {cause for cause in LogCause if read_reason(cause) is Reason.NETWORK_PARTITION}
    assert silent == {TIMEOUT, LogCause.UNREACHABLE}


def test_an_attempt_that_we_ended_is_cancelled_and_not_called_refused():
    """The gate's refusals are logged without an attempt's id."""
    assert read_outcome(LogCause.SIDECAR) is AttemptOutcome.CANCELLED


QUEUED, PREFILL, DECODE = Evidence(), Evidence(asked=True), Evidence(asked=True, released=True)
CLIENTS_MISTAKE = Evidence(asked=True, released=True, client_error=True)


@pytest.mark.parametrize(
    ("resolution", "evidence", "state", "phase"),
    [
        (FINISHED, DECODE, OperationState.COMPLETED, Phase.COMPLETED),
        (FINISHED, CLIENTS_MISTAKE, OperationState.FAILED, Phase.PREFILL),
        (CLIENT_GONE, PREFILL, OperationState.CANCELLED, Phase.PREFILL),
        (CLIENT_GONE, DECODE, OperationState.CANCELLED, Phase.DECODE),
        (broke(), PREFILL, OperationState.FAILED, Phase.PREFILL),
        (broke(), DECODE, OperationState.FAILED, Phase.DECODE),
        (CLIENT_GONE, QUEUED, OperationState.CANCELLED, Phase.QUEUED),
        (REFUSED, QUEUED, OperationState.FAILED, Phase.QUEUED),
        (UNKNOWN, DECODE, OperationState.FAILED, Phase.DECODE),
    ],
)
def test_what_the_journal_says_of_an_ending(resolution, evidence, state, phase):
    """The phase of an answer that is not whole is the one it had reached."""
    assert read_state(resolution, evidence) == (state, phase)
