"""Faults on demand: the words for them and the text form in which a request asks for one.

    x-sim-fault: a:die_after=3:rst, #1:b:hang, *:slow=4+pings=2@0.1

A value is a list of rules, separated by commas; the first rule that selects this replica and this
attempt wins. A rule is `[selector:]...fault[=argument][:how]`. A selector is a replica's name, `*`,
or `#N` for requests whose `x-envoy-attempt-count` is N (absent counts as 1: replicas do not share
state, and that header is the only thing that tells attempts apart). `+` joins faults that one
answer shows together. `how` is fin, rst or kill and belongs to the faults that start with `die`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.sim.plan import Close, ErrorKind, How, Only, Plan, Point, Refusal, Stop

FAULT_HEADER: Final = "x-sim-fault"
ATTEMPT_COUNT_HEADER: Final = "x-envoy-attempt-count"


class FaultError(ValueError):
    """The text does not name a fault, or gives it an argument that it cannot take."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault's place in the table: how it changes a plan and which answers can show it."""

    apply: Callable[[Plan, str, How], Plan]
    argument: str = ""
    """How the argument is written, for people; empty when there is none, in brackets when optional."""
    breaks: bool = True
    """False when the answer is still whole and well-formed."""
    stream: bool = True
    json: bool = False
    cuts: bool = False
    """Takes a `how`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault, or several joined, for those requests that its selectors select."""

    text: str
    plan: Plan
    replica: str | None
    attempt: int | None
    stream: bool
    json: bool

    def selects(self, replica: str, attempt: int) -> bool:
        """Whether this rule is meant for an attempt at a replica."""
        return self.replica in (None, replica) and self.attempt in (None, attempt)

    def fits(self, stream: bool) -> bool:
        """Whether an answer of this kind can show the fault."""
        return self.stream if stream else self.json


def parse_faults(text: str) -> tuple[Rule, ...]:
    """Read a list of rules; raises `FaultError` with a line that a person can use."""
    return tuple(_parse_rule(item.strip()) for item in text.split(",") if item.strip())


def choose_rule(rules: Iterable[Rule], replica: str, attempt: int) -> Rule | None:
    """The first rule that selects the attempt."""
    return next((rule for rule in rules if rule.selects(replica, attempt)), None)


def _parse_rule(text: str) -> Rule:
    replica: str | None = None
    attempt: int | None = None
    rest = text
    while True:
        head, colon, tail = rest.partition(":")
        if not colon or re.split(r"[=+]", head)[0] in FAULTS:
            break
        if head.startswith("#"):
            attempt = _integer(head[1:], f"attempt {head!r}")
        elif head != "*":
            replica = head
        rest = tail
    plan = Plan()
    stream = json = True
    for part in rest.split("+"):
        fault, plan = _apply(part, plan)
        stream, json = stream and fault.stream, json and fault.json
    return Rule(text, plan, replica, attempt, stream, json)


def _apply(text: str, plan: Plan) -> tuple[Fault, Plan]:
    body, _, how_text = text.partition(":")
    name, equals, argument = body.partition("=")
    fault = FAULTS.get(name)
    if fault is None:
        raise FaultError(f"unknown fault {name!r}; known: {', '.join(FAULTS)}")
    if bool(equals) != bool(fault.argument) and not fault.argument.startswith("["):
        wanted = f"={fault.argument}" if fault.argument else " without an argument"
        raise FaultError(f"fault {text!r}: write {name}{wanted}")
    if how_text and (not fault.cuts or how_text not in (How.FIN, How.RST, How.KILL)):
        raise FaultError(f"fault {text!r}: {how_text!r} is not a way for it to stop")
    changed = fault.apply(plan, argument, How(how_text) if how_text else How.FIN)
    return fault, replace(changed, broken=name) if fault.breaks else changed


def _integer(text: str, what: str, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise FaultError(f"{what}: {text!r} is not a whole number from {least}")
    return int(text)


def _seconds(text: str, what: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        raise FaultError(f"{what}: {text!r} is not a number")
    return float(text)


def _dies(at: Point, name: str = "") -> Fault:
    """A fault that cuts the connection; with a name it takes the number of deltas before the cut."""

    def apply(plan: Plan, argument: str, how: How) -> Plan:
        return replace(plan, stop=Stop(at, how, _integer(argument, name) if name else 0))

    either = at in (Point.BEFORE_HEADERS, Point.AFTER_HEADERS)
    body = at is Point.MID_BODY
    return Fault(apply, "N" if name else "", stream=not body, json=either or body, cuts=True)


def _die_in_tool(plan: Plan, argument: str, how: How) -> Plan:
    return replace(plan, stop=Stop(Point.IN_TOOL, how, after_s=_seconds(argument, "die_in_tool")))


def _hangs(at: Point, name: str = "") -> Fault:
    def apply(plan: Plan, argument: str, _how: How) -> Plan:
        return replace(plan, stop=Stop(at, How.HANG, _integer(argument, name) if name else 0))

    body = at is Point.MID_BODY
    either = at in (Point.BEFORE_HEADERS, Point.AFTER_HEADERS)
    return Fault(apply, "N" if name else "", stream=not body, json=either or body)


def _slow(plan: Plan, argument: str, _how: How) -> Plan:
    return replace(plan, slow=_seconds(argument, "slow"))


def _pings(plan: Plan, argument: str, _how: How) -> Plan:
    count, _, every = argument.partition("@")
    return replace(plan, pings=_integer(count, "pings", 1), ping_every_s=_seconds(every, "pings interval"))


def _error_kind(text: str) -> ErrorKind:
    try:
        return ErrorKind(text)
    except ValueError:
        raise FaultError(f"error kind {text!r}; known: {', '.join(ErrorKind)}") from None


def _error_first(plan: Plan, argument: str, _how: How) -> Plan:
    return replace(plan, only=Only.ERROR, error=_error_kind(argument))


def _error_after(plan: Plan, argument: str, _how: How) -> Plan:
    count, semicolon, kind = argument.partition(";")
    error = _error_kind(kind) if semicolon else ErrorKind.ENGINE
    return replace(plan, close=Close.ERROR, deltas=_integer(count, "error_after"), error=error)


def _status(plan: Plan, argument: str, _how: How) -> Plan:
    code, semicolon, retry_after = argument.partition(";")
    status = _integer(code, "status", 200)
    if status > 599:
        raise FaultError(f"status: {status} is not an HTTP status")
    return replace(plan, refusal=Refusal(status, retry_after if semicolon else None))


def _closes(close: Close, argument: str = "") -> Fault:
    """A fault of the stream's end; its argument is the number of deltas before that end."""

    def apply(plan: Plan, text: str, _how: How) -> Plan:
        return replace(plan, close=close, deltas=_integer(text, close) if text else None)

    return Fault(apply, argument)


def _changes(change: Callable[[Plan], Plan], *, breaks: bool = False, json: bool = False) -> Fault:
    return Fault(lambda plan, _argument, _how: change(plan), breaks=breaks, json=json)


def _big_event(plan: Plan, argument: str, _how: How) -> Plan:
    return replace(plan, big_event_bytes=_integer(argument, "big_event", 1))


FAULTS: Final[dict[str, Fault]] = {
    "die_before_headers": _dies(Point.BEFORE_HEADERS),
    "die_after_headers": _dies(Point.AFTER_HEADERS),
    "die_after_role": _dies(Point.AFTER_ROLE),
    "die_after": _dies(Point.AFTER_DELTAS, "die_after"),
    "die_mid_event": _dies(Point.MID_EVENT, "die_mid_event"),
    "die_mid_body": _dies(Point.MID_BODY),
    "die_in_tool": Fault(_die_in_tool, "SECONDS", json=True, cuts=True),
    "hang": _hangs(Point.BEFORE_HEADERS),
    "hang_after_headers": _hangs(Point.AFTER_HEADERS),
    "hang_mid_body": _hangs(Point.MID_BODY),
    "hang_after": _hangs(Point.AFTER_DELTAS, "hang_after"),
    "slow": Fault(_slow, "FACTOR", breaks=False, json=True),
    "pings": Fault(_pings, "N@SECONDS", breaks=False),
    "error_first": Fault(_error_first, "KIND"),
    "error_after": Fault(_error_after, "N[;KIND]"),
    "status": Fault(_status, "CODE[;RETRY_AFTER]", json=True),
    "status204": _changes(lambda plan: replace(plan, refusal=Refusal(204)), breaks=True, json=True),
    "truncate": _closes(Close.NOTHING, "N"),
    "no_done": _closes(Close.NO_DONE),
    "done_only": _changes(lambda plan: replace(plan, only=Only.DONE), breaks=True),
    "abort": _closes(Close.ABORT, "[N]"),
    "finish_null": _closes(Close.FINISH_NULL, "[N]"),
    "raw_json_error": _changes(lambda plan: replace(plan, only=Only.RAW_JSON_ERROR), breaks=True),
    "gzip": _changes(lambda plan: replace(plan, gzip=True), json=True),
    "gzip_always": _changes(lambda plan: replace(plan, gzip_always=True), json=True),
    "big_event": Fault(_big_event, "BYTES", breaks=False),
    "one_byte": _changes(lambda plan: replace(plan, one_byte=True), json=True),
    "crlf": _changes(lambda plan: replace(plan, newline="\r\n")),
    "cr": _changes(lambda plan: replace(plan, newline="\r")),
    "bom": _changes(lambda plan: replace(plan, bom=True)),
    "empty": _changes(lambda plan: replace(plan, empty=True)),
    "content_length": _changes(lambda plan: replace(plan, content_length=True), json=True),
    "ndjson": _changes(lambda plan: replace(plan, ndjson=True)),
}
"""Every fault by its name."""
