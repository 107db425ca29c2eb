"""Pools, replicas and capacity as text: pure functions from the operations port's JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from envoy_ext.cli.columns import (
    Json,
    build_columns,
    find_mapping,
    list_mappings,
    show,
    show_age,
    show_number,
    show_share,
    show_words,
)

_REPLICA_STYLES: Final = {"ready": "green", "warming": "green", "saturated": "yellow", "unready": "red"}
_AVAILABILITY_STYLES: Final = {"normal": "green", "degraded_last_known": "yellow", "empty": "red"}
_VERDICTS: Final = {True: "holds", False: "fails", None: "unknown"}
_VERDICT_STYLES: Final = {"holds": "green", "fails": "red", "unknown": "yellow"}


def build_status_text(status: Json) -> Text:
    """`status`: the pools, the replicas, and what there is to say of each pool."""
    pools, capacities = list_mappings(status.get("pools")), list_mappings(status.get("capacity"))
    parts = [_build_pools(pools, capacities), build_replicas_text(list_mappings(status.get("replicas")))]
    lines = [
        *(line for pool in pools if (line := _describe_discovery(pool)) is not None),
        *(Text(f"{show(pool.get('pool'))}: {_read_verdict(pool)[1]}") for pool in capacities),
        *(
            Text(f"{show(pool.get('name'))}: fingerprints differ: {show(line)}", style="yellow")
            for pool in pools
            for line in _list_texts(pool.get("mix"))
        ),
        *(
            Text(f"{show(one.get('id'))}: {show(line)}", style="yellow")
            for one in list_mappings(status.get("replicas"))
            for line in _list_texts(one.get("contradictions"))
        ),
    ]
    return Text("\n\n").join([*parts, Text("\n").join(lines)] if lines else parts)


def _build_pools(pools: Sequence[Json], capacities: Sequence[Json]) -> Text:
    if not pools:
        return Text("no pools")
    verdicts = {pool.get("pool"): _read_verdict(pool)[0] for pool in capacities}
    header = ("POOL", "AVAILABILITY", "WHY", "BOUNDARY", "QUEUED", "PREFILL", "DECODE", "FREE", "N+1")
    rows = []
    for pool in pools:
        inflight = find_mapping(pool, "inflight")
        rows.append(
            (
                show(pool.get("name")),
                show(pool.get("availability")),
                show(pool.get("reason")),
                show(pool.get("boundary")),
                *(show(inflight.get(phase)) for phase in ("queued", "prefill", "decode")),
                _show_slots(find_mapping(pool, "queue")),
                verdicts.get(pool.get("name"), _VERDICTS[None]),
            )
        )
    return build_columns(header, rows, styled={1: _AVAILABILITY_STYLES, 8: _VERDICT_STYLES})


def _show_slots(queue: Json) -> str:
    """Free slots of all; nothing where there is no limit."""
    if queue.get("slots") is None:
        return show(None)
    return f"{show(queue.get('free'))}/{show(queue.get('slots'))}"


def build_replicas_text(replicas: Sequence[Json]) -> Text:
    """One line for each replica."""
    if not replicas:
        return Text("no replicas")
    header = (
        *("REPLICA", "POOL", "STATE", "WHY", "WEIGHT", "RUNNING", "WAITING", "KV", "AGE", "STREAMS"),
        *("NODE", "ZONE", "URL"),
    )
    rows = [
        (
            show(one.get("id")),
            show(one.get("pool")),
            show(one.get("state")),
            show_words(one.get("reasons")),
            show(one.get("weight")),
            show(one.get("running")),
            show(one.get("waiting")),
            show_share(one.get("kv_cache_usage")),
            show_age(one.get("sample_age_s")),
            show(one.get("inflight")),
            show(one.get("node")),
            show(one.get("zone")),
            show(one.get("url")),
        )
        for one in replicas
    ]
    return build_columns(header, rows, styled={2: _REPLICA_STYLES})


def _describe_discovery(pool: Json) -> Text | None:
    """What keeps a pool's source from telling who is there; nothing while nothing does."""
    discovery = find_mapping(pool, "discovery")
    if discovery.get("failing") is None:
        return None
    stands = "the last list stands" if discovery.get("listed") else "nobody was listed yet"
    name, source = show(pool.get("name")), show(discovery.get("source"))
    why, since = show(discovery.get("detail")), show_age(discovery.get("failing_for_s"))
    return Text(f"{name}: discovery by {source} fails since {since}, {stands}: {why}", style="red")


def build_capacity_text(report: Json) -> Text:
    """`capacity`: where the load is from, the room of each pool in each scenario, and what follows."""
    pools = list_mappings(report.get("pools"))
    parts = [Text(show(report.get("note"))), _build_rooms(pools)]
    parts += [_build_findings(pool) for pool in pools]
    costs = [pool for pool in pools if find_mapping(pool, "cost")]
    if costs:
        parts.append(_build_costs(costs))
    return Text("\n\n").join(parts)


def _build_rooms(pools: Sequence[Json]) -> Text:
    if not pools:
        return Text("no pools")
    header = ("POOL", "N+1", "LOAD", "NOW", "BUSIEST", "KV", "ROOM", "NOTHING", "REPLICA", "NODE", "ZONE")
    rows = []
    for pool in pools:
        busiest = find_mapping(pool, "busiest")
        ratios = [find_mapping(busiest, "scenarios", one).get("ratio") for one in _SCENARIOS]
        rows.append(
            (
                show(pool.get("pool")),
                _read_verdict(pool)[0],
                show(pool.get("load")),
                show_number(find_mapping(pool, "now").get("requests"), "g"),
                show_number(busiest.get("requests"), "g"),
                show_number(busiest.get("kv_cache"), ".2f"),
                show_number(pool.get("room"), "g"),
                *(show_number(ratio, "+.0%") for ratio in ratios),
            )
        )
    return build_columns(header, rows, styled={1: _VERDICT_STYLES})


_SCENARIOS: Final = ("nothing", "replica", "node", "zone")


def _build_findings(pool: Json) -> Text:
    lines = [Text(show(pool.get("pool")), style="bold"), Text(f"  {_read_verdict(pool)[1]}")]
    lines += [Text(f"  {show(text)}") for text in _list_other_losses(pool)]
    for warning in list_mappings(pool.get("warnings")):
        lines.append(Text(f"  warning: {show(warning.get('text'))}", style="yellow"))
    lines += [Text(f"  note: {show(text)}") for text in _list_texts(pool.get("remarks"))]
    return Text("\n").join(lines)


def _list_other_losses(pool: Json) -> Iterator[object]:
    """Scenarios that do not hold and say more than the loss of a replica does."""
    scenarios = find_mapping(pool, "busiest", "scenarios")
    told = [find_mapping(scenarios, "replica").get("lost")]
    for name in ("nothing", "node", "zone"):
        scenario = find_mapping(scenarios, name)
        if scenario.get("holds") is False and scenario.get("lost") not in told:
            told.append(scenario.get("lost"))
            yield scenario.get("text")


def _build_costs(pools: Sequence[Json]) -> Text:
    header = ("POOL", "REPLICAS", "ONE AWAY", "WORK LOST THEN", "DOWNTIME", "REPLICAS COST", "A YEAR", "")
    rows = []
    for pool in pools:
        for year in ("as_it_is", "with_spare"):
            estimate = find_mapping(pool, "cost", year)
            rows.append(
                (
                    show(pool.get("pool")),
                    show(estimate.get("replicas")),
                    f"{show_number(estimate.get('hours_short'), ',.1f')} h",
                    show_share(estimate.get("lost_share")),
                    *(
                        show_number(estimate.get(key), ",.0f")
                        for key in ("downtime_cost", "replica_cost", "total")
                    ),
                    show(find_mapping(pool, "cost").get("currency") or " "),
                )
            )
    texts = [
        Text(f"{show(pool.get('pool'))}: {show(find_mapping(pool, 'cost').get('text'))}") for pool in pools
    ]
    title = Text("a year, if every hour were as busy as the busiest:")
    return Text("\n").join([title, build_columns(header, rows, styled={}), *texts])


def _read_verdict(pool: Json) -> tuple[str, str]:
    """The word, and the sentence."""
    verdict = find_mapping(pool, "n_plus_one")
    holds = verdict.get("holds")
    return _VERDICTS[holds if isinstance(holds, bool) else None], show(verdict.get("text"))


def _list_texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
