"""What would take several replicas of a pool down together, or make them no spares of each other."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from envoy_ext.domain.capacity import ReplicaLoad
from envoy_ext.domain.fingerprint import Fingerprint, describe_mix
from envoy_ext.domain.ids import PoolName, ReplicaId

Place = TypeVar("Place", bound=Hashable)


class Fate(StrEnum):
    """What is shared."""

    ALONE = "alone"
    """Nothing: there is one replica, and no other to take its work."""
    GPU = "gpu"
    NODE = "node"
    ZONE = "zone"
    FINGERPRINT = "fingerprint"
    """Too little: replicas that cannot answer in each other's place."""


@dataclass(frozen=True, slots=True)
class FateWarning:
    """One thing to know before it happens; `text` is for people."""

    pool: PoolName
    fate: Fate
    replicas: tuple[ReplicaId, ...]
    text: str


def list_shared_fates(
    loads: Sequence[ReplicaLoad], fingerprints: Mapping[ReplicaId, Fingerprint]
) -> tuple[FateWarning, ...]:
    """What the replicas of one pool share.

    Two on one node are worth a word each time, since a node is what fails. A zone is worth one when
    it holds them all: two of four in a zone is how two zones look.
    """
    if not loads:
        return ()
    pool = loads[0].pool
    if len(loads) == 1:
        text = f"{loads[0].replica} is the only replica: nothing takes its work when it goes"
        return (FateWarning(pool, Fate.ALONE, (loads[0].replica,), text),)
    warnings = []
    for (node, gpu), replicas in _share(loads, _list_gpus):
        text = f"{_print(replicas)} use the same GPU ({gpu} of {node}) and fail with it"
        warnings.append(FateWarning(pool, Fate.GPU, replicas, text))
    for node, replicas in _share(loads, lambda load: () if load.node is None else (load.node,)):
        text = f"{_print(replicas)} of {len(loads)} are on node {node} and fail with it"
        warnings.append(FateWarning(pool, Fate.NODE, replicas, text))
    for zone, replicas in _share(loads, lambda load: () if load.zone is None else (load.zone,)):
        if len(replicas) == len(loads):
            text = f"all {len(loads)} replicas are in zone {zone}"
            warnings.append(FateWarning(pool, Fate.ZONE, replicas, text))
    for line in describe_mix(fingerprints):
        text = f"not all replicas can answer in each other's place: {line}"
        warnings.append(FateWarning(pool, Fate.FINGERPRINT, tuple(sorted(fingerprints)), text))
    return tuple(warnings)


def _list_gpus(load: ReplicaLoad) -> tuple[tuple[str, int], ...]:
    """A GPU's number means something on its node only."""
    return () if load.node is None else tuple((load.node, gpu) for gpu in load.gpus)


def _share(
    loads: Sequence[ReplicaLoad], list_places: Callable[[ReplicaLoad], Sequence[Place]]
) -> list[tuple[Place, tuple[ReplicaId, ...]]]:
    """The places that hold several replicas, in the order in which they come up."""
    holders: dict[Place, list[ReplicaId]] = {}
    for load in loads:
        for place in dict.fromkeys(list_places(load)):
            holders.setdefault(place, []).append(load.replica)
    return [(place, tuple(replicas)) for place, replicas in holders.items() if len(replicas) > 1]


def _print(replicas: tuple[ReplicaId, ...]) -> str:
    return ", ".join(replicas)
