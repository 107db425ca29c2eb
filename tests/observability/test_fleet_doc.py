"""docs/fleet.md names every state, every reason with its kind, and every metric: no more and no less."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from envoy_ext.domain.readiness_reasons import KINDS
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.observability.headroom import HeadroomMetric
from envoy_ext.observability.metrics import Metrics

DOC = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()


def read_table(head: str) -> list[list[str]]:
    """The rows below a head line, cell by cell, without the marks of code."""
    lines = DOC.split(head, 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows
    return rows


def test_every_state_has_its_row() -> None:
    assert [state for state, _ in read_table("| state | means |")] == [state.value for state in ReplicaState]


def test_every_reason_has_its_row_in_the_order_of_the_words_and_with_its_kind() -> None:
    rows = [(word, kind) for word, kind, _ in read_table("| reason | kind | stands when |")]
    assert rows == [(reason.value, kind.value) for reason, kind in KINDS.items()]


def test_every_metric_has_its_row_with_its_labels() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, ["chat"])
    HeadroomMetric(registry, lambda: ())
    families = {family.name: family.type for family in registry.collect()}
    suffixes = {"counter": "_total", "info": "_info"}
    names = {
        name + suffixes.get(kind, "") for name, kind in families.items() if name.startswith("envoy_ext_")
    }
    rows = {name: re.findall(r"\w+", labels) for name, labels, _ in read_table("| metric | labels | says |")}
    assert set(rows) == names
    metrics.fleet.note_scrape_failure("chat", "a", "timeout")
    for family in registry.collect():
        for sample in family.samples:
            name = family.name + suffixes.get(family.type, "")
            if name in rows:
                assert set(sample.labels) - {"le"} == set(rows[name]), name
