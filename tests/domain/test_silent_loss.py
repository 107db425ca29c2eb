"""From when on a loss may be this side's own giving up, and when a request that is sent is lost."""

import pytest

from envoy_ext.domain.silent_loss import GIVEN_UP_S, Confirmation, is_unconfirmed, may_be_a_cut


@pytest.mark.parametrize(
    ("silent_s", "maybe"), [(0.0, False), (4.9, False), (5.0, True), (GIVEN_UP_S, True), (600.0, True)]
)
def test_a_loss_that_comes_soon_is_the_replicas_own(silent_s: float, maybe: bool) -> None:
    """Keepalive needs 6 s of silence; one of them is left for what is heard late here."""
    assert may_be_a_cut(silent_s) is maybe


LONG = 60.0


@pytest.mark.parametrize(
    ("told", "waited_s", "lost"),
    [
        pytest.param(Confirmation(7.0, 12, 5, 0), LONG, True, id="cut: sent again and again"),
        pytest.param(Confirmation(14.5, 0, 0, 2), LONG, True, id="cut, with a closed window: probes"),
        pytest.param(Confirmation(13.0, 0, 0, 1), LONG, False, id="stopped: a probe on its way"),
        pytest.param(Confirmation(60.0, 0, 0, 0), LONG, False, id="stopped: no probe is due for long"),
        pytest.param(Confirmation(6.4, 3, 0, 0), LONG, False, id="stopped: the window was taken back"),
        pytest.param(Confirmation(8.0, 1, 2, 0), LONG, False, id="a packet or two lost"),
        pytest.param(Confirmation(9.0, 0, 3, 0), LONG, False, id="confirmed by now"),
        pytest.param(Confirmation(4.9, 12, 4, 0), LONG, False, id="heard 5 s ago"),
        pytest.param(Confirmation(8.0, 12, 4, 0), 4.9, False, id="silent before it was asked"),
        pytest.param(Confirmation(5.0, 12, 4, 0), 5.0, True, id="for as long as it takes"),
    ],
)
def test_a_request_is_lost_when_its_machine_answers_no_try(
    told: Confirmation, waited_s: float, lost: bool
) -> None:
    assert is_unconfirmed(told, waited_s) is lost
