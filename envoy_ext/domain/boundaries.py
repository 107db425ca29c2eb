"""Boundaries: which pools a request may reach, by the class of its data.

A pool has one boundary: `local`, `site`, or `external:<name>`. A data class names the boundaries that its
requests may cross, each by its full name: none stands for another, and nothing outside is reached unless
it is named. What a request may reach follows from its class and the configuration alone, and is fixed
before the first replica is asked (`Identity.allowed_pools`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.ids import PoolName

LOCAL: Final = "local"
DEFAULT: Final = "default"
"""The class of every request that names none."""
FORBIDDEN: Final = "data_class_forbidden"
"""The contract's error code for a request that may not go where it would have to."""


@dataclass(frozen=True, slots=True)
class DataClass:
    """One class of data, and where it may go."""

    name: str
    boundaries: frozenset[str] = frozenset({LOCAL})


class Boundaries:
    """The data classes of a configuration and the boundaries of its pools; there always is the default class.

    Unless the configuration says otherwise, the default class reaches local pools only.
    """

    def __init__(self, classes: Iterable[DataClass], pools: Mapping[PoolName, str]) -> None:
        named = {DEFAULT: DataClass(DEFAULT)} | {one.name: one for one in classes}
        self._allowed = {
            one.name: frozenset(pool for pool, boundary in pools.items() if boundary in one.boundaries)
            for one in named.values()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Every class that a request may name."""
        return tuple(self._allowed)

    def find_allowed(self, data_class: str | None) -> frozenset[PoolName] | None:
        """The pools that a request of this class may reach; None for a class that nobody has configured,
        which is never taken for another one."""
        return self._allowed.get(DEFAULT if data_class is None else data_class)

    def is_reachable(self, pool: PoolName) -> bool:
        """Whether any class of data may reach a pool. Where none may, nothing at all is to be sent."""
        return any(pool in allowed for allowed in self._allowed.values())
