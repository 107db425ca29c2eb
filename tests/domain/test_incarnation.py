"""When a page proves that the process before it is gone, by which an attempt counts as dead."""

from dataclasses import replace

import pytest

from envoy_ext.domain.incarnation import ProcessMarks, is_other_process, proves_end
from tests.support.fleet_builders import IDLE, ready_replica

BEFORE = ProcessMarks(started_at=1000.0, requests_total=50.0, progress=900.0)


@pytest.mark.parametrize(
    ("after", "proved"),
    [
        pytest.param(ProcessMarks(1090.0, 0.0, 0.0), True, id="a later start, and counters that began anew"),
        pytest.param(ProcessMarks(1090.0, None, None), True, id="a page that counts nothing yet"),
        pytest.param(ProcessMarks(1090.0, 3.0, 12.0), True, id="a process that has worked already"),
        pytest.param(ProcessMarks(1090.0, 51.0, 950.0), False, id="the clock of its host was set"),
        pytest.param(ProcessMarks(1090.0, 50.0, None), False, id="and it has done nothing since"),
        pytest.param(ProcessMarks(1090.0, None, 900.5), False, id="nor has it without a count of requests"),
        pytest.param(ProcessMarks(910.0, 0.0, 0.0), False, id="a start that is earlier"),
        pytest.param(ProcessMarks(1000.9, 0.0, 0.0), False, id="a start computed anew"),
        pytest.param(ProcessMarks(1000.0, 0.0, 0.0), False, id="counters alone"),
        pytest.param(ProcessMarks(None, 0.0, 0.0), False, id="no start"),
    ],
)
def test_only_a_later_start_proves_an_end(after: ProcessMarks, proved: bool) -> None:
    assert proves_end(BEFORE, after) is proved
    assert not proved or is_other_process(BEFORE, after)


def test_a_process_whose_start_was_never_seen_cannot_be_known_to_have_ended() -> None:
    assert not proves_end(ProcessMarks(None, 50.0, 900.0), ProcessMarks(1090.0, 0.0, 0.0))


def test_counters_that_were_at_nothing_speak_for_nobody() -> None:
    assert proves_end(ProcessMarks(1000.0, 0.0, 0.0), ProcessMarks(1090.0, 0.0, 0.0))


def test_an_end_is_told_once_with_the_last_time_that_the_process_was_seen() -> None:
    replica = ready_replica()
    replica.scrape()
    last_seen_at = replica.now
    replica.fail("refused")
    replica.sleep(40)
    replica.scrape(process_started_at=IDLE.process_started_at + 90, requests_total=0, progress=0)
    replica.sleep(1)
    replica.scrape()
    assert [(end.replica, end.last_seen_at) for end in replica.ends] == [("a", last_seen_at)]


@pytest.mark.parametrize("looks", [[], ["refused"]])
def test_a_restart_that_is_only_likely_is_no_end(looks: list[str]) -> None:
    """Counters that fell, and a page without a start time where nothing listened before."""
    replica = ready_replica()
    for look in looks:
        replica.fail(look)
    replica.page = replace(IDLE, requests_total=0, process_started_at=None)
    replica.scrape()
    assert replica.gate.incarnation == 2
    assert replica.ends == []
