"""Traffic classes: what a request may say of its own kind, and what follows from it in a queue."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.ladder import NO_LADDER, Ladder

DEFAULT: Final = "default"
"""The class of every request that names none, or one that the configuration does not."""


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One class. Who waits in a class of higher priority goes first; classes of equal priority share by
    weight, whatever each of them sends."""

    name: str
    weight: int = 1
    priority: int = 0
    max_wait_s: float = 30.0
    """The longest that one of its requests waits for a slot."""
    unrecorded: bool = False
    """Whether its requests may run while the journal cannot be told of them."""
    ladder: Ladder = NO_LADDER
    """What is given up before one of its requests is refused."""


class TrafficClasses:
    """The classes of a configuration; there always is the default one."""

    def __init__(self, named: Iterable[TrafficClass], max_wait_s: float = 30.0) -> None:
        default = TrafficClass(DEFAULT, max_wait_s=max_wait_s)
        self._classes = {DEFAULT: default} | {one.name: one for one in named}

    def find(self, name: str | None) -> TrafficClass:
        """The class of a request that says this of itself."""
        return self._classes.get(name or DEFAULT, self._classes[DEFAULT])

    def __iter__(self) -> Iterator[TrafficClass]:
        return iter(self._classes.values())
