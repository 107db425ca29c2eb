"""The text form of faults: which rule a replica takes from it, and what a mistake in it says."""

import pytest

from envoy_ext.sim.faults import FAULTS, FaultError, choose_rule, parse_faults
from envoy_ext.sim.plan import Close, ErrorKind, How, Only, Plan, Point, Refusal, Stop


def plan_of(text: str, replica: str = "a", attempt: int = 1) -> Plan | None:
    rule = choose_rule(parse_faults(text), replica, attempt)
    return rule.plan if rule is not None else None


def test_no_text_is_no_fault() -> None:
    assert parse_faults("") == ()
    assert plan_of("") is None


def test_a_fault_without_a_selector_is_for_every_replica_and_attempt() -> None:
    assert plan_of("hang", "b", 7) == Plan(broken="hang", stop=Stop(Point.BEFORE_HEADERS, How.HANG))


def test_a_replica_takes_only_what_is_written_for_it() -> None:
    assert plan_of("b:hang", "a") is None
    assert plan_of("b:hang", "b") is not None
    assert plan_of("*:hang", "anything") is not None


def test_the_first_rule_that_selects_wins() -> None:
    text = "b:hang, a:truncate=2, *:done_only"
    assert plan_of(text, "a") == Plan(broken="truncate", close=Close.NOTHING, deltas=2)
    assert plan_of(text, "b") == Plan(broken="hang", stop=Stop(Point.BEFORE_HEADERS, How.HANG))
    assert plan_of(text, "c") == Plan(broken="done_only", only=Only.DONE)


def test_an_attempt_selector_holds_for_that_attempt_only() -> None:
    assert plan_of("#1:hang", attempt=1) is not None
    assert plan_of("#1:hang", attempt=2) is None
    assert plan_of("#2:b:hang", "b", 2) is not None
    assert plan_of("#2:b:hang", "a", 2) is None
    assert plan_of("b:#2:hang", "b", 1) is None


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("die_before_headers", Stop(Point.BEFORE_HEADERS, How.FIN)),
        ("die_after_headers:fin", Stop(Point.AFTER_HEADERS, How.FIN)),
        ("a:die_after_headers:rst", Stop(Point.AFTER_HEADERS, How.RST)),
        ("die_after_role:kill", Stop(Point.AFTER_ROLE, How.KILL)),
        ("die_after=3:rst", Stop(Point.AFTER_DELTAS, How.RST, 3)),
        ("die_after=0", Stop(Point.AFTER_DELTAS, How.FIN, 0)),
        ("a:#1:die_mid_event=2:kill", Stop(Point.MID_EVENT, How.KILL, 2)),
        ("die_mid_body", Stop(Point.MID_BODY, How.FIN)),
        ("hang_mid_body", Stop(Point.MID_BODY, How.HANG)),
        ("hang_after_headers", Stop(Point.AFTER_HEADERS, How.HANG)),
        ("hang_after=4", Stop(Point.AFTER_DELTAS, How.HANG, 4)),
    ],
)
def test_stops_are_read_with_their_place_and_their_way(text: str, stop: Stop) -> None:
    plan = plan_of(text)
    assert plan is not None
    assert plan.stop == stop


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("slow=2.5", Plan(slow=2.5)),
        ("pings=3@0.1", Plan(pings=3, ping_every_s=0.1)),
        ("error_first=overloaded", Plan("error_first", only=Only.ERROR, error=ErrorKind.OVERLOADED)),
        ("error_after=2", Plan("error_after", close=Close.ERROR, deltas=2, error=ErrorKind.ENGINE)),
        (
            "error_after=2;engine_400",
            Plan("error_after", close=Close.ERROR, deltas=2, error=ErrorKind.ENGINE_400),
        ),
        ("status=503", Plan("status", refusal=Refusal(503))),
        ("status=429;7", Plan("status", refusal=Refusal(429, "7"))),
        ("abort", Plan("abort", close=Close.ABORT)),
        ("abort=1", Plan("abort", close=Close.ABORT, deltas=1)),
        ("big_event=300000", Plan(big_event_bytes=300_000)),
    ],
)
def test_arguments_are_read(text: str, plan: Plan) -> None:
    assert plan_of(text) == plan


def test_joined_faults_show_together() -> None:
    plan = plan_of("a:slow=4+die_after=2:rst")
    assert plan == Plan(broken="die_after", slow=4.0, stop=Stop(Point.AFTER_DELTAS, How.RST, 2))


def test_an_unknown_fault_is_refused_with_all_known_names() -> None:
    with pytest.raises(FaultError) as caught:
        parse_faults("a:explode")
    assert "'explode'" in str(caught.value)
    assert all(name in str(caught.value) for name in FAULTS)


@pytest.mark.parametrize(
    "text",
    [
        "die_after",
        "die_after=",
        "die_after=-1",
        "die_after=two",
        "die_after_headers=1",
        "die_after_headers:softly",
        "die_after_headers:hang",
        "hang:rst",
        "pings=3",
        "pings=0@1",
        "slow=",
        "slow=nan",
        "error_first",
        "error_first=flood",
        "error_after=x",
        "status=99",
        "status=600",
        "big_event=0",
        "#x:hang",
        "hang+",
        "a:",
    ],
)
def test_a_malformed_fault_is_refused(text: str) -> None:
    with pytest.raises(FaultError):
        parse_faults(text)


def test_only_faults_that_json_answers_can_show_fit_them() -> None:
    fitting = {name for name, fault in FAULTS.items() if fault.json}
    assert {"die_before_headers", "die_after_headers", "die_mid_body", "status", "hang", "slow"} <= fitting
    assert not {"die_after", "truncate", "pings", "crlf", "error_first", "done_only"} & fitting
    assert [name for name, fault in FAULTS.items() if not fault.stream] == [
        "die_mid_body",
        "hang_mid_body",
    ]


def test_a_joined_rule_fits_only_what_all_its_faults_fit() -> None:
    (rule,) = parse_faults("slow=2+truncate=1")
    assert rule.fits(stream=True)
    assert not rule.fits(stream=False)
