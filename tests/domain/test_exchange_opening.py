"""Response headers wait for the first delta behind them: what never comes was not delivered."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import AttemptLogged, DrainExpired, LogCause, ResponseBody
from envoy_ext.domain.outcomes import Ending, Reason
from tests.support.exchange_builders import JSON, ReqChat, delta, role
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, Envoy


def released(*, type: str = "text/event-stream", request=None) -> Envoy:
    """The headers of a released attempt have come to the delivery filter, and no byte of its body."""
    envoy = Envoy(request, late=(DELIVERY, ATTEMPT_LOG))
    envoy.replica.answers(role() + delta("Hel"), type=type)
    envoy.deliver(DELIVERY)
    return envoy


def forwarded(envoy: Envoy) -> list[step.Reply]:
    return [one for one in envoy.replies if isinstance(one, step.ForwardResponse | step.ForwardBody)]


def lose(envoy: Envoy, body_bytes: int) -> None:
    """The attempt breaks; so many of its bytes had left the egress hop."""
    envoy.receive(
        AttemptLogged(envoy.replica.id, LogCause.UPSTREAM_RESET, None, body_bytes, "upstream_reset")
    )


def assert_nothing_was_delivered(envoy: Envoy, reason: Reason) -> None:
    assert envoy.client.status is None
    error = envoy.client.error
    assert error is not None
    assert (error.partial_output, error.delivered_output_tokens, error.reason) == (False, 0, reason)
    envoy.catch_up(DELIVERY)
    envoy.catch_up(ATTEMPT_LOG)
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, reason)
    assert (envoy.end.delivered_bytes, envoy.end.error_code) == (0, error.code)
    assert envoy.started == 1


def test_headers_go_on_with_the_first_delta_behind_them():
    envoy = released()
    assert forwarded(envoy) == []
    envoy.deliver(DELIVERY)
    headers, body = forwarded(envoy)
    assert isinstance(headers, step.ForwardResponse)
    assert body == step.ForwardBody(role() + delta("Hel"), end=False)


@pytest.mark.parametrize("first", [b"data: {", role(), role() + delta("Hel")[:-1]])
def test_bytes_without_a_delta_let_nothing_go_on(first):
    """The egress hop let them go together with a first delta: what follows is there, or lost."""
    envoy = released()
    envoy.receive(ResponseBody(first, end=False))
    assert forwarded(envoy) == []
    lose(envoy, len(first))
    assert envoy.client.code == "upstream_unavailable"
    assert_nothing_was_delivered(envoy, Reason.REPLICA_DIED)


@pytest.mark.parametrize("type", ["text/event-stream", JSON])
def test_a_replica_lost_before_a_byte_left_the_hop_is_an_error_and_no_answer(type):
    envoy = released(type=type, request=ReqChat(stream=type != JSON))
    lose(envoy, 0)
    assert envoy.client.code == "upstream_unavailable"
    assert_nothing_was_delivered(envoy, Reason.REPLICA_DIED)


def test_bytes_that_left_the_hop_and_never_came_are_waited_for_and_then_given_up():
    envoy = released()
    lose(envoy, 40)
    assert envoy.client.error is None
    envoy.wait(envoy.policy.inject_grace_s)
    assert envoy.client.code == "upstream_unavailable"
    assert_nothing_was_delivered(envoy, Reason.REPLICA_DIED)


def test_a_loss_that_was_logged_before_the_headers_came_is_an_error_too():
    envoy = Envoy(late=(DELIVERY, ATTEMPT_LOG))
    envoy.replica.answers(role() + delta("Hel"))
    lose(envoy, 0)
    envoy.deliver(DELIVERY)
    assert envoy.client.code == "upstream_unavailable"
    assert_nothing_was_delivered(envoy, Reason.REPLICA_DIED)


def test_a_stop_of_the_gateway_before_the_first_bytes_is_an_error_and_no_answer():
    envoy = released()
    envoy.receive(DrainExpired())
    assert envoy.client.code == "draining"
    assert_nothing_was_delivered(envoy, Reason.DRAIN_DEADLINE)


def test_a_replicas_own_refusal_goes_on_at_once():
    """Nothing was held for it, so its body may be slow."""
    envoy = Envoy(late=(DELIVERY, ATTEMPT_LOG))
    envoy.replica.begins(400, JSON, end=False, by="a")
    envoy.deliver(DELIVERY)
    (headers,) = forwarded(envoy)
    assert isinstance(headers, step.ForwardResponse)
