"""What `bench/peers.py` makes of samples."""

import pytest

from bench.peers import figures
from bench.peers.figures import BUSY, FIRST, PACED, SHORT, Round, Sample
from bench.peers.install import LITELLM, SMG
from bench.peers.page import DIRECT, PRODUCT, TWO_HOPS, Run, write_page, write_tables

MACHINE = {
    "date": "2026-12-01",
    "cores": 2,
    "system": "Linux",
    "python": "3.11",
    "envoy": "1.40.0",
    "load": [0.1, 1.0],
    LITELLM: "1",
    SMG: "2",
}


def make_sample(all_us: float, chunk_us: float, *, sidecar_us: float = 0.0, own_cpu: float = 0.3) -> Sample:
    times = {name: {"p50": chunk_us} for name in ("chunk_us", "first_us", "request_us")}
    counts = {"chunks": 100, "requests": 50, "seconds": 2.0, "own_cpu": own_cpu, "rss_mib": 64.0}
    return {**times, **counts, "all_us": all_us, "sidecar_us": sidecar_us}


def make_round(peer_us: float = 40_000.0, peer_chunk_us: float = 1_100.0) -> Round:
    by_gateway = {
        DIRECT: make_sample(0.0, 100.0),
        TWO_HOPS: make_sample(2_000.0, 150.0),
        PRODUCT: make_sample(4_000.0, 300.0, sidecar_us=1_000.0),
        LITELLM: make_sample(peer_us, peer_chunk_us),
    }
    return {name: dict.fromkeys((FIRST, PACED, BUSY, SHORT), one) for name, one in by_gateway.items()}


def make_run(*rounds: Round, missing: dict[str, str] | None = None) -> Run:
    return Run(list(rounds), dict.fromkeys(rounds[0], 50.0), missing or {}, MACHINE)


def test_a_ratio_is_of_one_round_and_its_median_of_all() -> None:
    rounds = [make_round(peer_us) for peer_us in (40_000.0, 20_000.0, 10_000.0)]
    busy = figures.judge(rounds, PRODUCT, LITELLM, DIRECT)[0]
    assert busy.ratio == figures.Figure(median=0.2, low=0.1, high=0.4)
    assert busy.word == "kept"


@pytest.mark.parametrize(
    ("peer_us", "word"), [(40_000.0, "aim reached"), (20_000.0, "kept"), (19_900.0, "missed")]
)
def test_a_target_is_judged_by_what_must_be(peer_us: float, word: str) -> None:
    assert figures.judge([make_round(peer_us)], PRODUCT, LITELLM, DIRECT)[0].word == word


def test_added_time_is_over_no_gateway() -> None:
    added = figures.judge([make_round()], PRODUCT, LITELLM, DIRECT)[2]
    assert added.ratio == figures.Figure(0.2, 0.2, 0.2)


def test_a_peer_that_adds_nothing_gives_no_ratio() -> None:
    added = figures.judge([make_round(peer_chunk_us=100.0)], PRODUCT, LITELLM, DIRECT)[2]
    assert (added.ratio, added.word) == (None, "not measured")


def test_a_sample_in_which_nothing_was_counted_is_no_figure() -> None:
    empty = make_round()
    empty[LITELLM][BUSY] = empty[LITELLM][BUSY] | {"chunks": 0}
    assert figures.judge([empty], PRODUCT, LITELLM, DIRECT)[0].word == "not measured"


def test_the_sidecar_alone_has_a_row_beside_all_processes() -> None:
    said = write_tables(make_run(make_round()))
    assert "| envoy-ext | 40 (40 to 40) | 40 (40 to 40) | 80 (80 to 80) |" in said
    assert "| envoy-ext, the sidecar alone | 10 (10 to 10) | 10 (10 to 10) | 20 (20 to 20) |" in said


def test_added_times_are_over_both_bases() -> None:
    row = next(
        line for line in write_tables(make_run(make_round())).splitlines() if "200 (200 to 200)" in line
    )
    assert row.startswith("| envoy-ext |")
    assert row.count("150 (150 to 150)") == 3


def test_a_peer_that_did_not_start_is_said() -> None:
    said = write_page(make_run(make_round(), missing={SMG: "no wheel"}))
    assert "**smg was not measured**: no wheel" in said


def test_a_busy_machine_and_a_busy_generator_are_said() -> None:
    one = make_round()
    one[DIRECT][BUSY] = make_sample(0.0, 100.0, own_cpu=0.95)
    run = make_run(one)
    assert "The load generator was busy, and may be what is measured: direct, lock step." in write_tables(run)
    assert "It had little else to do." in write_tables(run)
    run.machine = MACHINE | {"load": [12.0, 1.0]}
    assert "not to be quoted" in write_tables(run)
