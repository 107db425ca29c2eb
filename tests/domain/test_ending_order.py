"""However the streams and logs of an exchange interleave, and told once or twice, it ends the same way."""

import hypothesis.strategies as st
from hypothesis import given, settings

from envoy_ext.domain.events import AttemptLogged, ExchangeLogged, LogCause
from envoy_ext.domain.outcomes import Ending
from tests.support.exchange_builders import abort, delta, done, engine_error, finish, role, validation_error
from tests.support.exchange_envoy import DELIVERY, Envoy

TAILS = [b"", delta("lo"), delta("lo")[:9], finish(), finish() + done(), done(), engine_error(), abort()]


def end_it(envoy, fate):
    match fate:
        case "ends":
            envoy.attempt(1).ends()
        case "lost":
            envoy.attempt(1).is_lost()
        case "partitioned":
            envoy.attempt(1).is_lost(LogCause.UPSTREAM_TIMEOUT)
        case "lost, then the client leaves":
            envoy.attempt(1).is_lost()
            envoy.client_leaves()
        case "lost, then Envoy closes":
            envoy.attempt(1).is_lost()
            envoy.closes_broken_connection()
        case "the client leaves":
            envoy.client_leaves()


FATES = [
    "ends",
    "lost",
    "partitioned",
    "lost, then the client leaves",
    "lost, then Envoy closes",
    "the client leaves",
]


def play(first, tail, fate, heard, pick, twice):
    """An answer up to its tail; then its end, told by all sources in the order `pick` chooses."""
    envoy = Envoy(late=(DELIVERY,))
    envoy.replica.answers(first)
    if tail:
        envoy.replica.sends(tail)
    for _ in range(min(heard, len(envoy.queues[DELIVERY]))):
        envoy.deliver(DELIVERY)
    envoy.manual = True
    end_it(envoy, fate)
    told = []
    while sources := [source for source, queue in envoy.queues.items() if queue]:
        source = sources[pick(len(sources))]
        event = envoy.queues[source][0]
        envoy.deliver(source)
        if isinstance(event, AttemptLogged | ExchangeLogged):
            told.append(event)
        if told and twice():
            envoy.receive(told[pick(len(told))])
    envoy.wait(envoy.policy.settle_s + 1)
    assert envoy.exchange.finished
    return envoy


@given(
    first=st.sampled_from([role() + delta("Hel"), validation_error()]),
    tail=st.sampled_from(TAILS),
    fate=st.sampled_from(FATES),
    heard=st.integers(0, 4),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_interleaving_of_the_same_evidence_gives_the_same_ending(first, tail, fate, heard, data):
    in_order = play(first, tail, fate, heard, lambda _: 0, lambda: False)
    shuffled = play(
        first,
        tail,
        fate,
        heard,
        lambda count: data.draw(st.integers(0, count - 1)),
        lambda: data.draw(st.booleans()),
    )
    assert shuffled.end.ending is in_order.end.ending
    assert shuffled.end.state is in_order.end.state
    assert shuffled.outcomes == in_order.outcomes
    if in_order.end.ending is Ending.UPSTREAM_BROKE:
        assert shuffled.end.reason is in_order.end.reason
