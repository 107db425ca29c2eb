"""What one client asked for of one kind, and what it has been told: the same for both protocols.

State-of-the-world requests replace the names, delta requests change them; from there on nothing
differs. `told` remembers the version last *sent* of each name, accepted or not: that is why refused
content is not sent again, and why its successor is. Anchors in comments are of
https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.xds.kinds import ROOTS, Kind
from envoy_ext.xds.resources import Resource
from envoy_ext.xds.snapshot import Offer

WILDCARD: Final = "*"

_ABSENT: Final = ""
"""Told: there is no such resource."""
_UNSURE: Final = "?"
"""The client may have it, in a version that nobody knows: it has to be told, whatever it is."""


@dataclass(frozen=True, slots=True)
class SetNames:
    """A state-of-the-world request: these names and no others."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeNames:
    """A delta request. `held` counts on a stream's first request: versions from an earlier stream."""

    subscribe: tuple[str, ...]
    unsubscribe: tuple[str, ...]
    held: Mapping[str, str]


Change = SetNames | ChangeNames


@dataclass(frozen=True, slots=True)
class Due:
    """What a client has not been told yet."""

    changed: tuple[Resource, ...] = ()
    unknown: tuple[str, ...] = ()
    """Asked for by name, and not there."""
    gone: tuple[str, ...] = ()
    """Told of, or held from an earlier stream, and not there any more."""
    kept: tuple[str, ...] = ()
    """Not there any more, and not to be taken away yet."""
    first: bool = False
    """An answer is owed even if it is empty: the client asked for all and starts when it knows them."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.unknown or self.gone or self.first)


@dataclass(slots=True)
class Subscription:
    """Changed only by the session that owns it."""

    kind: Kind
    names: set[str] = field(default_factory=set)
    wildcard: bool = False
    _implicit: bool = field(init=False)
    """No name was ever given, which asks for all: #how-the-client-specifies-what-resources-to-return.
    Said there of listeners and clusters. Endpoints without names are nobody's endpoints: Envoy asks so
    when its last cluster went away."""
    _told: dict[str, str] = field(default_factory=dict)
    _shown: dict[str, Resource] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _alone: set[str] = field(default_factory=set)
    _heard: bool = False
    _answered: bool = False

    def __post_init__(self) -> None:
        self._implicit = self.kind in ROOTS

    # --- what the client says -------------------------------------------------------------------

    def change(self, change: Change) -> None:
        """Take in what a request says about names."""
        match change:
            case SetNames():
                self._set_names(change.names)
            case ChangeNames():
                self._change_names(change.subscribe, change.unsubscribe)
                if not self._heard:
                    self._restore(change.held)
        self._heard = True

    def _set_names(self, given: tuple[str, ...]) -> None:
        if self._stays_implicit(given):
            return
        names = set(given)
        self.wildcard = WILDCARD in names
        names.discard(WILDCARD)
        added, self.names = names - self.names, names
        # A name that is asked for anew has to be sent, even if it went out before and did not change.
        self._expect_again(added)
        self._forget_unwatched()

    def _change_names(self, subscribe: tuple[str, ...], unsubscribe: tuple[str, ...]) -> None:
        if self._stays_implicit(subscribe):
            return
        for name in subscribe:
            if name == WILDCARD:
                self.wildcard = True
            else:
                # "The server must still provide those resources", known or not: #subscribing-to-resources
                self.names.add(name)
                self._expect_again((name,))
        for name in unsubscribe:
            if name == WILDCARD:
                self.wildcard = False
            elif name in self.names:
                self.names.discard(name)
                if self.wildcard:
                    # The client cannot know whether the wildcard covers it: #unsubscribing-from-resources
                    self._told[name] = _UNSURE
        self._forget_unwatched()

    def _stays_implicit(self, given: tuple[str, ...]) -> bool:
        """True while no name was ever given. Once one was, no names means none."""
        if self._implicit and not given:
            self.wildcard = True
            return True
        self._implicit = False
        return False

    def _restore(self, held: Mapping[str, str]) -> None:
        """A reconnect: what the client kept need not be sent again, and what is gone must be named.

        Endpoints are sent all the same. A cluster that was warming when the last stream broke waits
        for an assignment on this one, and nothing in the request shows it.
        """
        for name, version in held.items():
            self._told[name] = _UNSURE if self.kind is Kind.EDS else version or _UNSURE

    def note_refusal(self, names: Iterable[str]) -> None:
        """The client refused these, as they were sent last; in some it may have lost interest since."""
        self._refused.update(name for name in names if name in self._told)

    def note_all_accepted(self) -> None:
        """The client took an answer that held everything."""
        self._refused.clear()

    def offer_singly(self, names: Iterable[str]) -> None:
        """The client refused these together: each has to be sent once more, alone."""
        for name in names:
            if name in self._told:
                self._alone.add(name)
                self._told[name] = _UNSURE

    # --- what the client is told ----------------------------------------------------------------

    @property
    def has_refused(self) -> bool:
        """Something was refused and has not been replaced: the client goes on with what it had."""
        return bool(self._refused)

    def find_due(self, offer: Offer) -> Due:
        """What has to be sent before the client is where the offer is."""
        told = self._told
        watched = offer.keys() | self.names if self.wildcard else self.names
        absent = sorted(name for name in self.names | told.keys() if name not in offer)
        asked = {name for name in absent if name in self.names and told.get(name, _UNSURE) == _UNSURE}
        return Due(
            changed=tuple(
                offer[name]
                for name in sorted(watched)
                if name in offer and told.get(name) != offer[name].version
            ),
            unknown=tuple(name for name in absent if name in asked),
            gone=tuple(name for name in absent if name not in asked and told[name] != _ABSENT),
            first=self.wildcard and not self._answered,
        )

    def list_watched(self, offer: Offer) -> list[Resource]:
        """All that is offered of what the client asked for."""
        return [offer[name] for name in sorted(offer) if self.wildcard or name in self.names]

    def list_refused(self, resources: Iterable[Resource]) -> list[Resource]:
        """Those that the client refused just as they are."""
        return [
            one for one in resources if one.name in self._refused and self._told.get(one.name) == one.version
        ]

    def list_shown(self, names: Iterable[str]) -> list[Resource]:
        """These resources as they were last sent on this stream, as far as they were."""
        return [self._shown[name] for name in names if name in self._shown]

    def choose_together(self, changed: tuple[Resource, ...]) -> tuple[Resource, ...]:
        """Those that can share an answer: all that are under no doubt, or else one that is."""
        together = tuple(one for one in changed if one.name not in self._alone)
        return together or changed[:1]

    def note_told(self, changed: Iterable[Resource], absent: Iterable[str]) -> None:
        """These were sent, and of those it was said that they are not there."""
        self._answered = True
        for resource in changed:
            self._told[resource.name] = resource.version
            self._shown[resource.name] = resource
            self._refused.discard(resource.name)
            self._alone.discard(resource.name)
        for name in absent:
            self._forget(name)
            if name in self.names:
                self._told[name] = _ABSENT

    def expect_again(self, names: Iterable[str]) -> None:
        """These have to be sent once more, refused or not: what they belong to has changed."""
        for name in names:
            self._refused.discard(name)
            if name in self._told:
                self._told[name] = _UNSURE

    def _expect_again(self, names: Iterable[str]) -> None:
        """The client's own wish. Not for what it refused: asking and refusing in turn would never end."""
        self.expect_again(name for name in set(names) if name not in self._refused)

    def _forget_unwatched(self) -> None:
        """So that a name that comes back is sent, and refused content may be tried again with it."""
        if not self.wildcard:
            for name in self._told.keys() - self.names:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._told.pop(name, None)
        self._shown.pop(name, None)
        self._refused.discard(name)
        self._alone.discard(name)
