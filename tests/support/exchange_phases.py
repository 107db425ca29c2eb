"""An exchange in each of its phases, and one whose client's side is over."""

from envoy_ext.domain.events import LogCause
from tests.support.exchange_builders import (
    JSON,
    ReqChat,
    ReqEmbeddings,
    delta,
    role,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, EXCHANGE_LOG, At, Envoy

DEADLINE = 12.0


def arriving():
    """The request has been let go; the egress hop has not asked yet."""
    return Envoy(ReqChat(deadline_s=DEADLINE), manual=True)


def asked():
    """An attempt works at a replica that has not answered."""
    return Envoy(ReqChat(deadline_s=DEADLINE))


def held():
    envoy = asked()
    envoy.replica.answers(role())
    return envoy


def waiting():
    """The replay waits at the gate for the end of the attempt before."""
    envoy = asked()
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.replica.at is At.GATE
    return envoy


def replayed():
    envoy = asked()
    envoy.replica.is_lost()
    assert envoy.replica.number == 2
    return envoy


def streaming():
    envoy = asked()
    envoy.replica.answers(role(), delta("Hel"))
    return envoy


def answering_json():
    envoy = Envoy(ReqEmbeddings())
    envoy.replica.answers(b"{", type=JSON)
    return envoy


BEFORE_THE_FIRST_DELTA = [asked, held, waiting, replayed]


def overtaken():
    """The replica broke, and bytes that left the hop have not come yet."""
    envoy = Envoy(ReqChat(deadline_s=DEADLINE), late=(DELIVERY,))
    envoy.replica.answers(role(), delta("Hel"), delta("lo"))
    for _ in range(3):
        envoy.deliver(DELIVERY)
    envoy.replica.is_lost()
    return envoy


def left():
    envoy = streaming()
    envoy.late = {ATTEMPT_LOG, EXCHANGE_LOG}
    envoy.client_leaves()
    return envoy
