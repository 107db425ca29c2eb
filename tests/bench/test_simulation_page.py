"""docs/simulation.md says what the kept results say."""

import json
import re

import pytest

from bench.simulation.__main__ import read_results
from bench.simulation.scenarios import MANY, list_cases
from bench.simulation.tables import KEPT, PAGE, fill, show

RESULTS = read_results()


def test_the_tables_are_those_of_the_results() -> None:
    page = PAGE.read_text()
    assert fill(page, RESULTS) == page


def test_a_result_that_changes_changes_the_page() -> None:
    changed = json.loads(json.dumps(RESULTS))
    name = next(name for name in changed if name.startswith("sweep/rules"))
    changed[name]["goodput"] += 0.5
    assert fill(PAGE.read_text(), changed) != PAGE.read_text()


def test_a_page_without_a_place_for_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 places for the table many"):
        fill(PAGE.read_text().replace("<!-- many -->", ""), RESULTS)


def test_what_is_kept_is_of_cases_that_can_be_run_again() -> None:
    assert set(RESULTS) <= {case.name for case in list_cases()}
    assert KEPT.exists()


def test_a_thousand_replicas_were_simulated_below_at_and_above_their_capacity() -> None:
    loads = {
        name.split("/")[2] for name in RESULTS if name.startswith("sweep/rules/") and f"/{MANY}/" in name
    }
    assert {"0.5", "1"} <= loads


def test_the_figures_are_there_and_small() -> None:
    shown = re.findall(r"!\[[^]]+\]\((simulation/[^)]+)\)", PAGE.read_text())
    assert len(shown) == 4
    for name in shown:
        figure = PAGE.parent / name
        assert 5_000 < figure.stat().st_size < 200_000


def test_a_range_is_shown_where_there_is_one() -> None:
    runs = [{"x": 1.0}, {"x": 2.0}]
    assert show(runs, lambda run: run["x"]) == "1.50 (1.00–2.00)"
    assert show(runs[:1], lambda run: run["x"]) == "1.00"
    assert show([], lambda run: run["x"]) == "–"
