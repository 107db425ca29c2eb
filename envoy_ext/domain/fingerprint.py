"""What two replicas must have in common for one to answer in the other's place.

Fields come from the configuration and, where an engine tells, from the engine. Fields known on both
sides must be equal. A field not known on one side counts as equal only between replicas of one pool:
putting them into one pool says that they serve the same thing, and nothing known speaks against it.
Between pools nobody has said so, and not known is not equal.

So "compatible" is not transitive: a replica that tells nothing is compatible with two that are not
compatible with each other. Always ask it of the pair at hand, never by groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from envoy_ext.domain.ids import PoolName, ReplicaId


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What makes the answers of a replica what they are; None is "not known"."""

    pool: PoolName
    model: str | None = None
    """What the engine says that it has loaded: a file, a folder, a hub's name."""
    weights: str | None = None
    """The revision of the model's weights."""
    quantization: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    """Its name, or the hash of its text where an engine tells the text."""
    attention: str | None = None
    """The attention implementation."""
    kv_dtype: str | None = None
    parallel: str | None = None
    """The parallel layout, such as tp=2: it decides the order in which floats are summed."""
    context: str | None = None
    """The context window in tokens: a prompt that one replica takes must fit the other."""
    adapters: tuple[str, ...] | None = None
    """Sorted by whoever fills it in; () is "none are loaded"."""


_PRINTED: Final = 16
"""Adapters in one line; a server may have thousands."""

FIELDS: Final = tuple(field.name for field in fields(Fingerprint) if field.name != "pool")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two fingerprints are known to differ."""

    field: str
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.field}: {self.left} and {self.right}"

    def describe_contradiction(self) -> str:
        """For people, when `left` is the configuration's word and `right` the engine's."""
        return f"{self.field}: {self.left} is configured, the engine says {self.right}"


def are_compatible(left: Fingerprint, right: Fingerprint) -> bool:
    """Whether either may answer in the other's place."""
    if list_differences(left, right):
        return False
    return left.pool == right.pool or not _list_unknown(left, right)


def list_differences(left: Fingerprint, right: Fingerprint) -> tuple[Difference, ...]:
    """The fields that both tell, and tell differently."""
    return tuple(
        Difference(field, _print(ours), _print(theirs))
        for field in FIELDS
        if (ours := getattr(left, field)) is not None
        and (theirs := getattr(right, field)) is not None
        and ours != theirs
    )


def merge_observed(
    declared: Fingerprint, observed: Fingerprint
) -> tuple[Fingerprint, tuple[Difference, ...]]:
    """A replica's fingerprint when its engine tells some of it, and where it contradicts the configuration.

    The engine is believed: what it serves is a fact, what the file says is an intention.
    """
    return complete(observed, declared), list_differences(declared, observed)


def complete(later: Fingerprint, earlier: Fingerprint) -> Fingerprint:
    """What two looks at one process tell together; the later one counts where both tell."""
    told: dict[str, Any] = list_known(later)
    return replace(earlier, **told)


@lru_cache(4096)
def compute_digest(fingerprint: Fingerprint) -> str:
    """A short name for what is known, the same in every process; "" when nothing is.

    Equal digests are equal fingerprints. Different ones may still be compatible: ask `are_compatible`.
    """
    known = list_known(fingerprint)
    if not known:
        return ""
    return blake2b(repr(list(known.items())).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def list_known(fingerprint: Fingerprint) -> dict[str, str | tuple[str, ...]]:
    """The fields that are known, in their order."""
    return {field: value for field in FIELDS if (value := getattr(fingerprint, field)) is not None}


def describe_mix(fingerprints: Mapping[ReplicaId, Fingerprint]) -> tuple[str, ...]:
    """One line for each field in which the replicas of a pool are known to differ; () when they do not."""
    lines = []
    for field in FIELDS:
        holders: dict[str | tuple[str, ...], list[str]] = {}
        for replica, fingerprint in fingerprints.items():
            value = getattr(fingerprint, field)
            if value is not None:
                holders.setdefault(value, []).append(replica)
        if len(holders) > 1:
            printed = sorted((_print(value), sorted(where)) for value, where in holders.items())
            parts = (f"{value} on {', '.join(where)}" for value, where in printed)
            lines.append(f"{field}: {'; '.join(parts)}")
    return tuple(lines)


def _list_unknown(left: Fingerprint, right: Fingerprint) -> list[str]:
    return [field for field in FIELDS if getattr(left, field) is None or getattr(right, field) is None]


def _print(value: str | tuple[str, ...]) -> str:
    """For a line that people read. What a long list leaves out stands there as a hash: lists that differ
    are never printed alike."""
    if isinstance(value, str):
        return value
    shown, more = value[:_PRINTED], value[_PRINTED:]
    if not more:
        return f"[{', '.join(shown)}]"
    digest = blake2b(repr(more).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"[{', '.join(shown)} and {len(more)} more, {digest}]"
