"""Capacity in plain words: what happens when something goes, what it costs, what the figures leave out."""

from math import ceil
from typing import Final

from envoy_ext.domain.capacity import Bottleneck, Headroom, Scenario
from envoy_ext.domain.capacity_report import LoadSource, PoolCapacity
from envoy_ext.domain.downtime_cost import SpareComparison
from envoy_ext.domain.load_peak import BUCKET_S, BUCKETS

_KINDS: Final = {Scenario.REPLICA: "replica", Scenario.NODE: "node", Scenario.ZONE: "zone"}
_TIGHTER: Final = {Bottleneck.REQUESTS: "requests at once", Bottleneck.KV_CACHE: "the KV cache"}


def describe_headroom(headroom: Headroom) -> str:
    """What happens in a scenario, in one sentence without an end."""
    return f"{_describe_loss(headroom)}, {_describe_rest(headroom)}"


def _describe_loss(headroom: Headroom) -> str:
    kind = _KINDS.get(headroom.scenario)
    if kind is None:
        return "as it is"
    if not headroom.where:
        return f"whatever {kind} goes"
    alone = kind == "replica" or headroom.lost == (headroom.where.removeprefix("replica "),)
    name = f"replica {headroom.lost[0]}" if alone else f"{kind} {headroom.where}"
    told = [] if alone else [", ".join(headroom.lost)]
    told += [headroom.why] if headroom.why else []
    return f"when {name} ({'; '.join(told)}) goes" if told else f"when {name} goes"


def _describe_rest(headroom: Headroom) -> str:
    requests = f"{headroom.requests:g}"
    if headroom.room <= 0.0:
        nothing = "nothing is left to take work" if headroom.where else "nothing takes work"
        return (
            nothing if headroom.requests <= 0.0 else f"{nothing}: none of {requests} requests finds a place"
        )
    tighter = f"the tighter limit is {_TIGHTER[headroom.bottleneck]}"
    if headroom.ratio < 0.0:
        share = -headroom.ratio
        if headroom.requests <= 0.0:
            return f"{share:.0%} of the KV cache in use finds no place"
        # The share was a division: 12 of 60 must not become 13.
        placeless = ceil(round(share * headroom.requests, 6))
        finds = "finds" if placeless == 1 else "find"
        return f"{placeless} of {requests} requests {finds} no place; {tighter}"
    if headroom.requests <= 0.0 and headroom.ratio == 1.0:
        return "there is no work to place"
    one = headroom.requests == 1.0
    who, finds = ("the one request", "finds") if one else (f"all {requests} requests", "find")
    if headroom.ratio == 0.0:
        return f"{who} just {finds} a place; {tighter}"
    return f"{who} {finds} a place and {headroom.ratio:.0%} stays free; {tighter}"


def describe_n_plus_one(capacity: PoolCapacity) -> str:
    """Whether the rest takes the work when the worst replica goes, or why that is not known."""
    headroom = None if capacity.busiest is None else capacity.busiest.find(Scenario.REPLICA)
    if headroom is not None:
        return describe_headroom(headroom)
    if capacity.listed is None:
        return "which replicas there are is not known: discovery tells it to a running sidecar"
    able = [replica for replica in capacity.listed if replica not in capacity.unable]
    if not able:
        return "nothing takes work"
    if len(able) == 1:
        return f"when replica {able[0]} goes, nothing is left to take work"
    return f"the load is not known; {len(able)} replicas have room for {capacity.room:g} requests at once"


def list_remarks(capacity: PoolCapacity) -> tuple[str, ...]:
    """What whoever reads the figures has to know of them."""
    remarks = []
    if capacity.unable:
        remarks.append(f"no room is counted for {_join(capacity.unable)}: no new work goes there now")
    if capacity.source is LoadSource.OWN_REQUESTS:
        remarks.append(
            "the load is this gateway's own requests: what others send to the replicas is not seen"
        )
    elif capacity.source is LoadSource.PARTLY_OWN:
        who = _join(capacity.unmeasured)
        remarks.append(f"of {who} only this gateway's own requests are known: the load is at least that")
    if capacity.crowded:
        who = _join(capacity.crowded)
        remarks.append(f"more is computed at once on {who} than capacity.concurrency says: is it too low?")
    if capacity.busiest is not None and capacity.busiest.demand.kv_cache is None:
        remarks.append("the KV cache is left out: its usage is not known")
    if capacity.window_s is not None and capacity.window_s < BUCKETS * BUCKET_S:
        remarks.append(f"the load has been measured for {_print_time(capacity.window_s)} so far")
    return tuple(remarks)


def describe_spare(comparison: SpareComparison, currency: str | None) -> str:
    """What one replica more changes in a year, in one sentence without an end."""
    saves = comparison.saves
    amount = f"{abs(saves):,.0f}{f' {currency}' if currency else ''}"
    if saves >= 0.0:
        return f"one replica more saves {amount} a year, its own cost taken off"
    return f"one replica more costs {amount} a year more than it saves"


def _join(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _print_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"
