"""One aggregated xDS stream without the stream: requests and snapshots in, responses and notes out.

Two things move it, a request and a publication, and both end in the same loop: bring the client, kind
by kind, from what it has been told to what is offered. Three rules bound the loop.

One answer at a time. A kind whose last answer has not been acknowledged gets no other, so a slow
client is brought to the newest snapshot in one step, and at most four answers are on their way.

What is referred to goes first. Listeners and routes wait until the clusters sent before them are
acknowledged: Envoy holds that acknowledgement back until a cluster is warm. What is taken away goes
last, in the opposite order, and not while a refused resource may still refer to it. Endpoints wait
for nothing, since the acknowledgement of their cluster waits for them.

No content twice. What was sent counts as told, accepted or refused. When several resources were
refused together, nobody knows which one was meant: each is sent once more, alone, so that a bad one
does not keep the good ones from the client.

Anchors in comments are of https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from envoy_ext.domain.errors import PeerViolation
from envoy_ext.xds.dialects import Ask, Dialect, News, check_count
from envoy_ext.xds.kinds import BY_TYPE_URL, REFERRERS, Kind
from envoy_ext.xds.resources import compute_version
from envoy_ext.xds.snapshot import Snapshot
from envoy_ext.xds.subscription import Due, Subscription

MOST_WORDS: Final = 300
"""Characters of a client's own words that go into a note."""
MOST_UNKNOWN_KINDS: Final = 8
"""Kinds that are noted of one stream. Envoy asks for those it was configured to ask for, each once."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """An answer goes out."""

    kind: Kind
    changed: int
    absent: int


@dataclass(frozen=True, slots=True)
class Nacked:
    """The client refused an answer and goes on with what it had. `detail` is its own words, shortened."""

    kind: Kind
    detail: str


@dataclass(frozen=True, slots=True)
class NotServed:
    """The client asked for a kind that nobody here knows, and waits until it gives up by itself; or it
    asked in a way that nobody can serve, and its stream ends."""

    type_url: str
    detail: str = ""


Note = Pushed | Nacked | NotServed


@dataclass(frozen=True, slots=True)
class Turn:
    """All that follows from one request or publication. Responses go out in order, then come the notes."""

    responses: tuple[Any, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(slots=True)
class _Lane:
    """One kind on one stream."""

    subscription: Subscription
    newest: str = ""
    """The nonce of the last answer."""
    awaited: bool = False
    """Its acknowledgement is still to come."""
    whole: bool = False
    """It held all that the client should have."""
    changed: tuple[str, ...] = ()
    """The names in it that the client did not have."""


@dataclass(slots=True)
class _TurnBuilder:
    responses: list[Any] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def take(self) -> Turn:
        return Turn(tuple(self.responses), tuple(self.notes))


class Session:
    """One stream. Whoever carries it calls `receive` and `publish`, one at a time, and sends what they
    return."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._snapshot: Snapshot | None = None
        self._lanes: dict[Kind, _Lane] = {}
        self._nonces = 0
        self._unknown: set[str] = set()
        self.node = ""
        """Who the client says it is; only a stream's first request has to tell."""

    def receive(self, request: Any) -> Turn:
        """Take in one request.

        Raises:
            PeerViolation: it does not say what it asks for, or asks for too much.
        """
        ask = self._dialect.read(request)
        turn = _TurnBuilder()
        self.node = self.node or shorten(ask.node)
        if not ask.type_url:
            raise PeerViolation("a request on an aggregated stream has no type_url")
        kind = BY_TYPE_URL.get(ask.type_url)
        if kind is None:
            self._note_unknown(shorten(ask.type_url), turn)
            return turn.take()
        lane = self._lanes.setdefault(kind, _Lane(Subscription(kind)))
        self._take_reply(kind, lane, ask, turn)
        if not self._dialect.is_stale(ask.nonce, lane.newest):
            lane.subscription.change(ask.change)
            check_count(len(lane.subscription.names))
        return self._advance(turn)

    def publish(self, snapshot: Snapshot) -> Turn:
        """Offer this from now on."""
        self._snapshot = snapshot
        return self._advance(_TurnBuilder())

    def has_taken(self, kind: Kind) -> bool:
        """The client asked for this kind, and took all of it that is offered to it."""
        return kind in self._lanes and self._is_settled(kind)

    @property
    def is_settled(self) -> bool:
        """The client has been told, and has answered to, all that it asked for."""
        return all(self._is_settled(kind) for kind in self._lanes)

    def _note_unknown(self, type_url: str, turn: _TurnBuilder) -> None:
        """Once for each, so that a client that asks on and on fills no log."""
        if type_url not in self._unknown and len(self._unknown) < MOST_UNKNOWN_KINDS:
            self._unknown.add(type_url)
            turn.notes.append(NotServed(type_url))

    def _take_reply(self, kind: Kind, lane: _Lane, ask: Ask, turn: _TurnBuilder) -> None:
        """The client's word on the last answer, if the request holds it; repeated, it says nothing new."""
        if not lane.awaited or ask.nonce != lane.newest:
            return
        lane.awaited = False
        if ask.refusal is None:
            if lane.whole:
                lane.subscription.note_all_accepted()
            return
        turn.notes.append(Nacked(kind, shorten(ask.refusal)))
        if len(lane.changed) > 1 and not lane.whole:
            lane.subscription.offer_singly(lane.changed)
        else:
            lane.subscription.note_refusal(lane.changed)

    def _advance(self, turn: _TurnBuilder) -> Turn:
        """Send what is due and may go, in warming order."""
        for kind in Kind:
            lane = self._lanes.get(kind)
            if lane is None or lane.awaited or self._waits_for_clusters(kind):
                continue
            due = self._find_due(kind)
            if not self._may_take_away(kind):
                due = replace(due, gone=(), kept=due.gone)
            if due:
                self._answer(kind, lane, due, turn)
        return turn.take()

    def _answer(self, kind: Kind, lane: _Lane, due: Due, turn: _TurnBuilder) -> None:
        assert self._snapshot is not None  # or nothing were due
        subscription, offer = lane.subscription, self._snapshot.offers[kind]
        lane.whole = self._dialect.is_whole(kind)
        if lane.whole:
            resources = [*subscription.list_watched(offer), *subscription.list_shown(due.kept)]
            # What was refused goes out again with the rest, and is news to the client if it takes it now.
            changed = (*due.changed, *subscription.list_refused(resources))
            version = compute_version(resources)
        else:
            resources = list(changed := subscription.choose_together(due.changed))
            version = self._snapshot.versions[kind]
        # What is not there goes alone as well, or a refusal of something else would take it along.
        absent = () if changed and not lane.whole else (*due.unknown, *due.gone)
        response = self._dialect.build(News(kind, resources, absent, version, str(self._nonces + 1)))
        subscription.note_told(changed, absent)
        if response is None:
            return
        self._nonces += 1
        lane.newest, lane.awaited = str(self._nonces), True
        lane.changed = tuple(resource.name for resource in changed)
        turn.responses.append(response)
        turn.notes.append(Pushed(kind, len(changed), len(absent)))
        if kind is Kind.CDS and Kind.EDS in self._lanes:
            # A changed cluster warms until it gets an assignment, its own old one or not: #resource-warming
            endpoints = (name for cluster in changed for name in cluster.refers_to)
            self._lanes[Kind.EDS].subscription.expect_again(endpoints)

    def _find_due(self, kind: Kind) -> Due:
        lane = self._lanes.get(kind)
        if lane is None or self._snapshot is None or kind not in self._snapshot.offers:
            return Due()
        return lane.subscription.find_due(self._snapshot.offers[kind])

    def _waits_for_clusters(self, kind: Kind) -> bool:
        """#eventual-consistency-considerations"""
        clusters = self._lanes.get(Kind.CDS)
        return kind in (Kind.LDS, Kind.RDS) and clusters is not None and clusters.awaited

    def _may_take_away(self, kind: Kind) -> bool:
        """Nothing that may refer to it is on its way, due, or was refused."""
        return all(self._is_settled(referrer) for referrer in REFERRERS[kind])

    def _is_settled(self, kind: Kind) -> bool:
        lane = self._lanes.get(kind)
        return lane is None or not (lane.awaited or lane.subscription.has_refused or self._find_due(kind))


def shorten(words: str) -> str:
    """A client's own words, fit for a line of a log. What matters of a refusal stands at both ends: Envoy
    begins with what it refused, prints all of that, however much it is, and says why in the end."""
    if len(words) > MOST_WORDS:
        words = f"{words[: MOST_WORDS // 3]} … {words[-(MOST_WORDS * 2 // 3) :]}"
    return " ".join("".join(one if one.isprintable() else " " for one in words).split())
