"""The judge of the hot path: evidence that is worse turns its own line red, and one that is spoiled too."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.performance import gateways, page
from bench.performance.figures import FIGURES
from bench.performance.loads import FIRST, LOCK_STEP, PACED, SHORT, Sample
from bench.performance.many import Seen, count_between, find_quantile
from bench.performance.memory import Held
from bench.performance.results import Results, read
from bench.performance.rounds import PLAN
from bench.performance.targets import (
    ADDED,
    CHUNK_AIO,
    CHUNK_ECHO,
    FIRST_ADDED,
    IDLE,
    MANY,
    RATE,
    REQUEST_AIO,
    TARGETS,
)
from bench.performance.verdict import Line, Word, judge_values

SECONDS = 2.0
CHUNK_US = {gateways.AIO: 100.0, gateways.ECHO: 30.0}
"""What a sidecar takes for a chunk; all others take 9."""
REQUEST_US = {gateways.AIO: 3_000.0, gateways.AIO_IN_MEMORY: 3_000.0}
PLAIN = (gateways.TWO_HOPS, gateways.HOPS_AGAIN)


def build_sample(load: str, gateway: str) -> Sample:
    """A good one: every target is reached as it is aimed at."""
    plain = gateway in PLAIN
    chunks = 0 if load == SHORT else 20_000 if plain else 15_000
    requests = 1_000 if load == SHORT else 0
    used = 0.0
    if not plain:
        used = chunks * CHUNK_US.get(gateway, 9.0) + requests * REQUEST_US.get(gateway, 200.0)
    times = {"n": 500.0, "p50": 200.0 if plain else 300.0, "p90": 400.0, "p99": 900.0, "max": 2_000.0}
    return Sample(
        seconds=SECONDS,
        chunks=chunks,
        requests=requests,
        merged=0,
        generator_cores=0.3,
        other_cores=0.02,
        stolen_cores=0.0,
        waiting_cores=0.0,
        envoy_us=1e6,
        sidecar_us=used,
        chunk_us=times,
        first_us=times,
        request_us=times,
    )


def build_seen(streams: int = 100) -> Seen:
    sample = replace(build_sample(PACED, gateways.NATIVE), chunks=int(streams * 50 * SECONDS))
    return Seen(streams, 50, sample, handled_ms=0.1, waited_ms=1.0, pings=800)


def build_results() -> Results:
    about = {
        "when": "2026-01-01 00:00 UTC",
        "commit": "0000000",
        "cores": 2,
        "cpu": "one",
        "kernel": "6.0",
        "python": "3.11.0",
        "envoy": "1.40.0",
        "journal": "SQLite",
        "seconds": SECONDS,
        "took_s": 60.0,
        "load_before": 0.1,
    }
    return Results(
        about,
        rounds=[
            {load: {name: build_sample(load, name) for name in names} for load, names in PLAN.items()}
            for _ in range(3)
        ],
        held=[Held(200, 2_000, 50_000, 50_000 + 1_800 * 7, 60_000, 90_000)],
        many=[build_seen(), build_seen(), build_seen()],
    )


def change(results: Results, load: str, gateway: str, **changed: object) -> None:
    for one in results.rounds:
        one[load][gateway] = replace(one[load][gateway], **changed)


def find(results: Results, key: str) -> Line:
    return next(line for line in results.judge() if line.target.key == key)


def list_red(results: Results) -> list[str]:
    return [line.target.key for line in results.judge() if line.red]


def test_a_good_run_reaches_every_aim() -> None:
    lines = build_results().judge()
    assert [line.target for line in lines] == list(TARGETS)
    assert {line.word for line in lines} == {Word.AIM}
    assert all(line.sure for line in lines)


Worsen = Callable[[Results], None]

WORSE: dict[str, tuple[Worsen, list[str]]] = {
    "grpc.aio is cheap": (
        lambda run: change(run, LOCK_STEP, gateways.AIO, sidecar_us=15_000 * 9.0),
        [CHUNK_AIO.key],
    ),
    "the echo is cheap": (
        lambda run: change(run, LOCK_STEP, gateways.ECHO, sidecar_us=15_000 * 9.0),
        [CHUNK_ECHO.key],
    ),
    "answers are dear": (
        lambda run: change(run, SHORT, gateways.NATIVE, sidecar_us=1_000 * 900.0),
        [REQUEST_AIO.key],
    ),
    "plain Envoy is fast": (
        lambda run: change(run, LOCK_STEP, gateways.TWO_HOPS, chunks=30_000),
        [RATE.key],
    ),
    "chunks are slow": (
        lambda run: change(run, PACED, gateways.NATIVE, chunk_us={"n": 500.0, "p50": 460.0}),
        [ADDED.key],
    ),
    "first tokens are slow": (
        lambda run: change(run, FIRST, gateways.NATIVE, first_us={"n": 500.0, "p50": 2_300.0}),
        [FIRST_ADDED.key],
    ),
    "streams are large": (
        lambda run: run.held.append(replace(run.held[0], sidecar_many_kib=50_000 + 1_800 * 40)),
        [IDLE.key],
    ),
    "the loop is late": (
        lambda run: run.many.__setitem__(slice(1, None), [replace(build_seen(), waited_ms=5.0)] * 2),
        [MANY.key],
    ),
}


@pytest.mark.parametrize("what", sorted(WORSE))
def test_what_is_worse_is_missed_in_its_own_line(what: str) -> None:
    results = build_results()
    worsen, keys = WORSE[what]
    worsen(results)
    assert list_red(results) == keys
    assert find(results, keys[0]).word == Word.MISSED


SPOILED: dict[str, tuple[Worsen, list[str]]] = {
    "chunks were merged behind grpc.aio": (
        lambda run: change(run, LOCK_STEP, gateways.AIO, merged=100),
        [CHUNK_AIO.key],
    ),
    "chunks were merged behind plain Envoy": (
        lambda run: change(run, LOCK_STEP, gateways.TWO_HOPS, merged=100),
        [RATE.key],
    ),
    "the generator was what was measured": (
        lambda run: change(run, LOCK_STEP, gateways.TWO_HOPS, generator_cores=0.95),
        [RATE.key],
    ),
    "a client read something else": (
        lambda run: run.rounds[2][FIRST].update(
            {gateways.NATIVE: replace(build_sample(FIRST, gateways.NATIVE), spoiled="an event out of order")}
        ),
        [FIRST_ADDED.key],
    ),
    "there was no echo": (
        lambda run: [one[LOCK_STEP].pop(gateways.ECHO) for one in run.rounds],
        [CHUNK_ECHO.key],
    ),
    "nothing was answered": (
        lambda run: change(run, SHORT, gateways.AIO, requests=0),
        [REQUEST_AIO.key],
    ),
    "a sidecar took no CPU": (
        lambda run: change(run, SHORT, gateways.NATIVE, sidecar_us=0.0),
        [REQUEST_AIO.key],
    ),
    "one round had too few times": (
        lambda run: run.rounds[1][PACED].update(
            {gateways.NATIVE: replace(build_sample(PACED, gateways.NATIVE), chunk_us={"n": 3.0, "p50": 1.0})}
        ),
        [ADDED.key],
    ),
    "no first token was timed": (
        lambda run: change(run, FIRST, gateways.TWO_HOPS, first_us={}),
        [FIRST_ADDED.key],
    ),
    "more streams took less": (
        lambda run: run.held.append(replace(run.held[0], sidecar_many_kib=49_000)),
        [IDLE.key],
    ),
    "no stream was held": (lambda run: run.held.clear(), [IDLE.key]),
    "the streams were not carried": (
        lambda run: run.many.append(replace(build_seen(), streams=110)),
        [MANY.key],
    ),
    "the sidecar was hardly asked": (
        lambda run: run.many.append(replace(build_seen(), pings=20)),
        [MANY.key],
    ),
    "the search failed": (lambda run: run.failed.update({MANY.key: "it broke"}), [MANY.key]),
}


@pytest.mark.parametrize("what", sorted(SPOILED))
def test_what_is_spoiled_is_no_evidence_for_its_own_line(what: str) -> None:
    results = build_results()
    spoil, keys = SPOILED[what]
    spoil(results)
    assert list_red(results) == keys
    line = find(results, keys[0])
    assert line.word == Word.NO_EVIDENCE
    assert line.figure is None
    assert line.why
    assert f"**no evidence**: {line.why}" in page.write_verdicts(results.judge())


def test_noise_is_told_with_the_lines_that_are_made_of_it() -> None:
    results = build_results()
    change(results, PACED, gateways.HOPS_AGAIN, chunk_us={"n": 500.0, "p50": 260.0})
    assert [line.target.key for line in results.judge() if line.noise] == [ADDED.key]
    assert "but a chunk's median time, two hops twice gives 1.30" in page.write_verdicts(results.judge())


def test_a_backlog_that_is_read_is_not_carried() -> None:
    seen = build_seen()
    late = replace(seen.sample, chunk_us={**seen.sample.chunk_us, "p50": 25_000.0})
    assert seen.carried
    assert not replace(seen, streams=90).carried  # more than were due
    assert not replace(seen, sample=late).carried


def test_buckets_are_read_by_name() -> None:
    before = 'a_bucket{le="0.5"} 1.0\na_bucket{le="+Inf"} 2.0\nab_bucket{le="0.5"} 9.0\n'
    after = 'a_bucket{le="0.5"} 4.0\na_bucket{le="+Inf"} 7.0\nab_bucket{le="0.5"} 9.0\n'
    assert count_between(before, after, "a") == {0.5: 3.0, float("inf"): 5.0}


def test_a_run_without_rounds_shows_nothing() -> None:
    results = build_results()
    results.rounds.clear()
    assert list_red(results) == [one.key for one in TARGETS if one.key in FIGURES]


def test_a_bound_itself_is_reached() -> None:
    for target in TARGETS:
        assert judge_values(target, [target.aim]).word == Word.AIM
        assert judge_values(target, [target.must]).word == Word.MUST
        worse = target.must * (0.99 if target.at_least else 1.01)
        assert judge_values(target, [worse]).word == Word.MISSED


def test_the_median_has_the_word_and_the_range_says_whether_it_is_sure() -> None:
    line = judge_values(CHUNK_AIO, [0.15, 0.25, 0.16])
    assert line.word == Word.MUST
    assert not line.sure
    assert line.figure is not None
    assert (line.figure.low, line.figure.median, line.figure.high) == (0.15, 0.16, 0.25)


def test_what_is_kept_says_the_same_when_it_is_read() -> None:
    results = build_results()
    results.tried = {gateways.NATIVE: [build_seen(), build_seen(200)]}
    again = Results.from_json(results.as_json())
    assert again == results
    assert page.write_tables(again) == page.write_tables(results)


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    buckets = {1.0: 10.0, 2.0: 99.0, float("inf"): 100.0}
    assert find_quantile(buckets, 0.5) == 2.0
    assert find_quantile(buckets, 0.1) == 1.0
    assert find_quantile(buckets, 0.995) == float("inf")
    assert find_quantile({1.0: 0.0}, 0.5) is None


def test_the_page_says_what_is_kept() -> None:
    text = page.PAGE.read_text()
    assert page.fill(text, read(page.KEPT)) == text
