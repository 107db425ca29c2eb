"""Normalised evidence: what differs by chance is gone, and nothing else is."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.drills.scenarios.evidence import Evidence
from envoy_ext.drills.scenarios.normalise import BY_CHANCE, Normaliser, normalise
from envoy_ext.drills.scenarios.report import Run
from envoy_ext.drills.scenarios.runner import Played, find_differences
from tests.drills.test_scenario_files import SCENARIO
from tests.support.scenario_evidence import build_attempt, build_interrupted, build_refused, build_replayed

UNEXPECTED = SCENARIO.model_copy(update={"expect": None})
A_NAME = (
    r"(op|att|exg|call)_[0-9A-Z]{8,12}|chatcmpl-(left|right)-[1-9][0-9]{0,6}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-4000-8000-[0-9a-f]{12}"
)
IDS = st.from_regex(A_NAME, fullmatch=True)
REPLICAS = st.sampled_from(["left", "right"])
WORDS = st.sampled_from(["", "word", "replica_died", "[DONE]", "{", "op_", "a left turn"])
LEAVES = st.one_of(IDS, REPLICAS, WORDS, st.integers(0, 9), st.none(), st.booleans())
KEYS = st.sampled_from(["id", "data", "time", "created", "code"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(json.dumps),
    ),
    max_leaves=12,
)


def norm(value: Any) -> Any:
    return Normaliser(("left", "right")).replace(value)


def rename(value: Any, names: dict[str, str]) -> Any:
    """The same with other names, also in texts that hold JSON."""
    if isinstance(value, dict):
        return {key: rename(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [rename(one, names) for one in value]
    if isinstance(value, str) and value.startswith("{") and value != "{":
        return json.dumps(rename(json.loads(value), names))
    return names.get(value, value) if isinstance(value, str) else value


def list_leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() if key not in BY_CHANCE for leaf in list_leaves(one)]
    if isinstance(value, list):
        return [leaf for one in value for leaf in list_leaves(one)]
    if isinstance(value, str) and value.startswith("{") and value != "{":
        return list_leaves(json.loads(value))
    return [value]


@given(VALUES)
def test_other_ids_and_replicas_give_the_same_form(value: Any) -> None:
    ids = [leaf for leaf in list_leaves(value) if re.fullmatch(A_NAME, str(leaf))]
    names = {one: one.replace("-4000-", "-4001-") if "-4000-" in one else f"{one}7" for one in ids}
    names |= {"left": "right", "right": "left"}
    assert norm(rename(value, names)) == norm(value)


@given(st.lists(st.one_of(IDS, REPLICAS), max_size=8))
def test_different_ids_stay_different_and_equal_ones_equal(ids: list[str]) -> None:
    numbers = norm(ids)
    for one, number in zip(ids, numbers, strict=True):
        for other, its in zip(ids, numbers, strict=True):
            assert (one == other) == (number == its)


@given(VALUES)
def test_a_form_is_its_own_form(value: Any) -> None:
    assert norm(norm(value)) == norm(value)


@given(VALUES)
def test_what_is_no_id_and_no_moment_stays(value: Any) -> None:
    kept = [leaf for leaf in list_leaves(value) if leaf in ("", "word", "replica_died", 3, None, True)]
    assert [
        leaf for leaf in list_leaves(norm(value)) if leaf in ("", "word", "replica_died", 3, None, True)
    ] == kept


def test_each_kind_of_name_is_numbered_by_itself() -> None:
    ids = ["att_0000000A", "op_0000000A", "att_0000000B", "right", "chatcmpl-right-7", "att_0000000A", "left"]
    assert norm(ids) == ["att 1", "op 1", "att 2", "replica 1", "chatcmpl 1", "att 1", "replica 2"]
    assert norm("ask op_0000000A of 00000000-0000-4000-8000-000000000000") == "ask op 1 of request 1"


def test_only_whether_there_is_a_moment_stays() -> None:
    assert norm({"ended_at": "2026-01-01", "created": 7, "time": None}) == {
        "ended_at": "by chance",
        "created": "by chance",
        "time": None,
    }


# --- of evidence ------------------------------------------------------------------------------------


def swap(evidence: Evidence) -> Evidence:
    """The same run with the two replicas in each other's place, at another time, under other ids."""
    names = {"left": "right", "right": "left", "att_0000000": "att_9999999", "op_0000000": "op_9999999"}

    def change(text: str) -> str:
        for number, old in enumerate(names):
            text = text.replace(old, f"\x00{number}")
        for number, new in enumerate(names.values()):
            text = text.replace(f"\x00{number}", new)
        return text

    events = tuple(replace(one, time=one.time + 5, data=change(one.data)) for one in evidence.client.events)
    headers = {name: change(value) for name, value in evidence.client.headers.items()}
    engines = tuple(
        replace(
            line,
            time=line.time + 5,
            replica=change(line.replica),
            attempt_id=change(line.attempt_id),
            data=change(line.data),
        )
        for line in evidence.engines
    )
    operation = json.loads(change(json.dumps(evidence.operation)))
    operation["created_at"] = "2027-02-02"
    return replace(
        evidence,
        client=replace(evidence.client, events=events, headers=headers),
        engines=engines,
        operation=operation,
    )


@pytest.mark.parametrize("build", [build_replayed, build_interrupted, build_refused])
def test_the_same_run_elsewhere_has_the_same_form(build: Any) -> None:
    _, evidence = build()
    assert swap(evidence) != evidence
    assert normalise(swap(evidence)) == normalise(evidence)


def test_when_to_come_back_is_chance_and_other_headers_are_not() -> None:
    _, evidence = build_refused()

    def told(name: str, value: str) -> dict[str, Any]:
        headers = {**evidence.client.headers, name: value}
        return normalise(replace(evidence, client=replace(evidence.client, headers=headers)))

    assert told("retry-after", "1") == told("retry-after", "3")
    assert told("x-attempt-count", "1") != told("x-attempt-count", "2")


def test_an_attempt_that_reached_no_engine_has_a_place_that_is_chance_too() -> None:
    _, evidence = build_refused()
    forms = []
    for other in ("right", "middle"):
        attempts = [*evidence.operation["attempts"], build_attempt(2, other, "refused")]
        forms.append(normalise(replace(evidence, operation={**evidence.operation, "attempts": attempts})))
    assert forms[0] == forms[1]


def test_half_an_event_counts_as_half_an_event_however_long_it_is() -> None:
    _, evidence = build_interrupted()

    def with_half(text: str) -> Evidence:
        last = evidence.engines[-1]
        return replace(evidence, engines=(*evidence.engines, replace(last, what="chunk", data=text)))

    assert normalise(with_half('data: {"id":"chatcmpl-left-1')) == normalise(with_half('data: {"id":"ch'))
    assert normalise(with_half("data: {}\n\n")) != normalise(with_half('data: {"id":"ch'))


def test_runs_that_differ_in_a_word_a_count_or_an_order_have_other_forms() -> None:
    _, evidence = build_replayed()
    form = normalise(evidence)
    events = evidence.client.events
    others = [
        replace(evidence, client=replace(evidence.client, events=events[:-1])),
        replace(evidence, client=replace(evidence.client, events=(events[1], events[0], *events[2:]))),
        replace(evidence, operation={**evidence.operation, "state": "failed"}),
        replace(evidence, engines=evidence.engines[:-1]),
        replace(
            evidence, engines=(replace(evidence.engines[0], attempt_id="att_00000002"), *evidence.engines[1:])
        ),
    ]
    assert [normalise(other) == form for other in others] == [False] * len(others)


def test_a_difference_between_stores_is_found_and_told() -> None:
    _, evidence = build_replayed()
    other = replace(evidence, operation={**evidence.operation, "delivered_deltas": 2})

    def played(store: str, seen: Evidence) -> Played:
        return Played(store, [Run(SCENARIO, store, "1", "r", seen, (), {})])

    assert find_differences([played("memory", evidence), played("sqlite", swap(evidence))]) == []
    unexpected = replace(played("sqlite", other).runs[0], scenario=UNEXPECTED)
    by_chance = replace(played("memory", evidence).runs[0], scenario=UNEXPECTED)
    assert find_differences([Played("memory", [by_chance]), Played("sqlite", [unexpected])]) == []
    differences = find_differences([played("memory", evidence), played("sqlite", other)])
    assert [line.split(": ", 2)[:2] for line in differences] == [
        [SCENARIO.name, "memory and sqlite differ"],
    ] * 2
