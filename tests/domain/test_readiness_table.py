"""Every event in every state of a replica, as a table. What is not named leaves the state as it is."""

from dataclasses import replace
from typing import get_args

import pytest

from envoy_ext.domain.discovery import Standing
from envoy_ext.domain.fleet_events import (
    CircuitMoved,
    CircuitStanding,
    ControlCallFailed,
    ControlCallPassed,
    DependencyChanged,
    Discovered,
    DrainRequested,
    FleetEvent,
    InflightChanged,
    LoopLate,
    OwnAttemptEnded,
    Removed,
    Scraped,
    ScrapeFailed,
    StandingChanged,
    StreamBytes,
    Undrained,
)
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import GpuSample, Sample, ScrapeFailure
from tests.support.fleet_builders import IDLE, POLICY, DrivenReplica

S = ReplicaState

STATES = {
    S.DISCOVERED: lambda r: None,
    S.STARTING: lambda r: r.fail("loading"),
    S.WARMING: lambda r: r.scrape(),
    S.READY: lambda r: (r.scrape(), r.wait(31)),
    S.SATURATED: lambda r: (r.scrape(waiting=40), r.wait(6)),
    S.UNREADY: lambda r: (r.scrape(), r.fail("refused")),
    S.DRAINING: lambda r: (r.scrape(), r.send(DrainRequested(r.now + 60))),
    S.GONE: lambda r: r.send(Removed()),
}

HEARD = {S.DISCOVERED: S.STARTING}
OUT = dict.fromkeys((S.WARMING, S.READY, S.SATURATED), S.UNREADY)
DRAINED = {state: S.DRAINING for state in S if state is not S.GONE}
OTHER_PROCESS = {state: S.STARTING for state in S if state not in (S.DRAINING, S.GONE)}


def failed(reason):
    return lambda: ScrapeFailed(ScrapeFailure(2_000.0, reason))


EVENTS = {
    "discovered": (Discovered, {S.GONE: S.DISCOVERED}),
    "removed": (Removed, dict.fromkeys(S, S.GONE)),
    "listed": (lambda: StandingChanged(Standing.LISTED), {}),
    "listed as not ready": (lambda: StandingChanged(Standing.HELD), OUT),
    "listed as leaving": (lambda: StandingChanged(Standing.LEAVING), DRAINED),
    "a page": (lambda: Scraped(replace(IDLE, at=2_000.0)), HEARD),
    # Unready is what was refused here: the page that follows must show that it is the same process.
    "an empty page": (lambda: Scraped(Sample(2_000.0)), {**HEARD, S.UNREADY: S.STARTING}),
    "another process's page": (
        lambda: Scraped(replace(IDLE, at=2_000.0, process_started_at=1_750_000_090.0)),
        {**HEARD, **dict.fromkeys((S.WARMING, S.READY, S.SATURATED, S.UNREADY), S.STARTING)},
    ),
    "an older page": (lambda: Scraped(replace(IDLE, at=900.0)), HEARD),
    "asleep": (lambda: Scraped(replace(IDLE, at=2_000.0, sleeping=True)), {**HEARD, **OUT}),
    "a broken GPU": (
        lambda: Scraped(replace(IDLE, at=2_000.0, gpus=(GpuSample("0", xid=79),))),
        {**HEARD, **OUT},
    ),
    "a full page": (lambda: Scraped(replace(IDLE, at=2_000.0, waiting=40)), HEARD),
    "loading": (failed("loading"), OTHER_PROCESS),
    "refused": (failed("refused"), {**HEARD, **OUT}),
    "reset": (failed("reset"), {**HEARD, **OUT}),
    "an engine that is dead": (failed("engine_dead"), {**HEARD, **OUT}),
    "timeout": (failed("timeout"), HEARD),
    "unreachable": (failed("unreachable"), HEARD),
    "starved": (failed("starved"), {}),
    "a bad status": (failed("bad_status"), HEARD),
    "no metrics": (failed("unsupported"), HEARD),
    "something else than metrics": (failed("not_metrics"), HEARD),
    "too much of it": (failed("too_large"), HEARD),
    "control call passed": (lambda: ControlCallPassed(1), {S.DISCOVERED: S.WARMING, S.STARTING: S.WARMING}),
    "control call failed": (lambda: ControlCallFailed(1, "HTTP 500"), HEARD),
    "a declined control call": (
        lambda: ControlCallPassed(1, declined="answered 401"),
        {S.DISCOVERED: S.WARMING, S.STARTING: S.WARMING},
    ),
    "control call of an earlier process": (lambda: ControlCallPassed(0), {}),
    **{
        f"an attempt: {outcome}": (lambda outcome=outcome: OwnAttemptEnded(outcome), {})
        for outcome in AttemptOutcome
    },
    "bytes": (StreamBytes, {}),
    "inflight": (lambda: InflightChanged(3), {}),
    "drain": (lambda: DrainRequested(3_000.0), DRAINED),
    "undrain": (Undrained, {S.DRAINING: S.WARMING}),
    "a lost dependency": (lambda: DependencyChanged("adapters", reachable=False), OUT),
    "a dependency that is there": (lambda: DependencyChanged("adapters", reachable=True), {}),
    "its circuit opened": (lambda: CircuitMoved(CircuitStanding(True, True, False, "")), OUT),
    "its circuit is overruled": (lambda: CircuitMoved(CircuitStanding(False, True, True, "")), {}),
    "its circuit is closed": (lambda: CircuitMoved(None), {}),
    "late": (lambda: LoopLate(30.0), {}),
}


def test_the_table_has_every_event():
    assert {type(build()) for build, _ in EVENTS.values()} == set(get_args(FleetEvent))


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", list(S))
def test_every_state_with_every_event(state, event):
    replica = DrivenReplica(policy=replace(POLICY, slow_start_s=30.0))
    STATES[state](replica)
    assert replica.state is state
    build, moves = EVENTS[event]
    replica.now += 0.5
    replica.send(build())
    assert replica.state is moves.get(state, state)
