"""An Envoy in memory, at the other end of a session: it asserts the protocol on every message it gets.

What it does is what Envoy 1.40 was seen to do: endpoints are asked for when a cluster names them, a
changed cluster warms until an assignment comes, the acknowledgement of clusters is held back until
all are warm (so is their first request on a fresh stream), and what it holds survives a reconnect. A
response with something bad in it is refused as a whole.

Requests and responses lie in queues until somebody lets them through: `hear` and `answer`.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import BY_TYPE_URL, ROOTS, Kind
from envoy_ext.xds.resources import read_resource
from envoy_ext.xds.session import Note, Session, Turn
from envoy_ext.xds.snapshot import Snapshot
from tests.xds.builders import BAD, read_name, read_number

CHILD = {Kind.CDS: Kind.EDS, Kind.LDS: Kind.RDS}


class Peer:
    """One client. Subclasses speak one protocol each."""

    dialect: Dialect

    def __init__(self, snapshot: Snapshot | None = None, *, refuses: bool = True) -> None:
        self.refuses = refuses
        self.held: dict[Kind, dict[str, bytes]] = {kind: {} for kind in Kind}
        self.names: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        self.extra: set[str] = set()
        """Assignments watched without a cluster."""
        self.warming: set[str] = set()
        self.notes: list[Note] = []
        self.heard = 0
        self.connect(snapshot)

    # --- the stream -----------------------------------------------------------------------------

    def connect(self, snapshot: Snapshot | None) -> None:
        """A fresh stream to a server that offers this; what was on its way is lost."""
        self.session = Session(self.dialect)
        self.requests: deque[Any] = deque()
        self.responses: deque[Any] = deque()
        self.nonces: set[str] = set()
        self.newest_sent: dict[Kind, str] = {}
        self.unanswered: dict[Kind, str] = {}
        self.asked: dict[Kind, set[str]] = {}
        self.nonce: dict[Kind, str] = {}
        self.opened: set[Kind] = set()
        self.held_back: Any = None
        self.waits_to_open = False
        if snapshot is not None:
            assert self.session.publish(snapshot) == Turn(), "nothing was asked for"

    def publish(self, snapshot: Snapshot) -> list[Any]:
        """The server offers something else; what it sends at once."""
        return self.take(self.session.publish(snapshot))

    def hear(self) -> list[Any]:
        """The server hears one request; what it sends."""
        request = self.requests.popleft()
        kind = BY_TYPE_URL[request.type_url]
        if self.unanswered.get(kind) == request.response_nonce:
            self.unanswered.pop(kind)
        if not self.is_stale(kind, request):
            self.note_asked(kind, request)
        return self.take(self.session.receive(request))

    def take(self, turn: Turn) -> list[Any]:
        """Check what the server sends, as it sends it."""
        self.notes += turn.notes
        for response in turn.responses:
            self.check(response)
            self.responses.append(response)
        return list(turn.responses)

    def check(self, response: Any) -> None:
        """What every response of the protocol has to be."""
        kind = BY_TYPE_URL[response.type_url]
        assert kind in self.asked, "a kind that was asked for"
        assert response.nonce, "a nonce"
        assert response.nonce not in self.nonces, "a nonce of its own"
        self.nonces.add(response.nonce)
        assert kind not in self.unanswered, "one answer of a kind at a time"
        assert not (kind in (Kind.LDS, Kind.RDS) and Kind.CDS in self.unanswered), "clusters first"
        self.unanswered[kind] = self.newest_sent[kind] = response.nonce
        named = [read_name(kind, value) for value in self.list_values(response)]
        assert len(named) == len(set(named)), "no name twice"
        for name in named:
            assert name in self.asked[kind] or "*" in self.asked[kind], "a name that was asked for"

    def step(self) -> bool:
        """Let one message through; False when both sides are silent."""
        if self.requests:
            self.hear()
        elif self.responses:
            self.answer()
        else:
            return False
        return True

    def settle(self, most: int = 300) -> int:
        """Let everything through; how many messages that took."""
        count = 0
        while self.step():
            count += 1
            assert count <= most, "they never stop"
        return count

    # --- the client -----------------------------------------------------------------------------

    def start(self, kinds: Iterable[Kind]) -> None:
        """The first requests of a stream."""
        for kind in kinds:
            if kind is Kind.CDS and self.warming:
                self.waits_to_open = True  # Envoy keeps the clusters' requests back while one of them warms
            else:
                self.open(kind)

    def answer(self) -> None:
        """Take in one response, and queue what Envoy says to it."""
        self.heard += 1
        response = self.responses.popleft()
        kind = BY_TYPE_URL[response.type_url]
        self.nonce[kind] = response.nonce
        values = self.list_values(response)
        if self.refuses and any(read_number(kind, value) >= BAD for value in values):
            if kind is Kind.EDS:  # a refused assignment ends the wait for it
                self.warming -= {read_name(kind, value) for value in values}
            self.reply(kind, response, "bad number")
            self.go_on()
            return
        before = dict(self.held[kind])
        self.apply(kind, response)
        self.accept(kind, response)
        changed = {name for name, value in self.held[kind].items() if before.get(name) != value}
        if kind is Kind.EDS:
            self.warming -= {read_name(kind, value) for value in values} | self.list_removed(response)
        elif kind in CHILD:
            self.follow(kind, changed)
        if kind is Kind.CDS and self.warming:
            self.held_back = response
        else:
            self.reply(kind, response, None)
        self.go_on()

    def go_on(self) -> None:
        """What waited for the last cluster to get warm."""
        if self.warming:
            return
        if self.held_back is not None:
            late, self.held_back = self.held_back, None
            self.reply(Kind.CDS, late, None)
        if self.waits_to_open:
            self.waits_to_open = False
            self.open(Kind.CDS)

    def follow(self, kind: Kind, changed: set[str]) -> None:
        """Ask for what the clusters (or listeners) name; a changed cluster warms."""
        child = CHILD[kind]
        refers_to = {name: read_resource(kind, value).refers_to for name, value in self.held[kind].items()}
        wanted = {name for found in refers_to.values() for name in found}
        if kind is Kind.CDS:
            self.warming = (self.warming & wanted) | {n for one in changed for n in refers_to[one]}
            wanted |= self.extra
        self.want(child, wanted, again=bool(changed))

    def watch(self, name: str) -> None:
        """Ask for one more assignment."""
        self.extra.add(name)
        self.want(Kind.EDS, self.names[Kind.EDS] | {name}, again=False)

    def unwatch(self, name: str) -> None:
        """Lose interest in it."""
        self.extra.discard(name)
        clusters = self.held[Kind.CDS].values()
        needed = {name for value in clusters for name in read_resource(Kind.CDS, value).refers_to}
        if name not in needed:
            self.want(Kind.EDS, self.names[Kind.EDS] - {name}, again=False)

    def want(self, kind: Kind, names: set[str], *, again: bool) -> None:
        added, dropped = names - self.names[kind], self.names[kind] - names
        self.names[kind] = names
        for name in dropped:
            self.held[kind].pop(name, None)
        if kind not in self.opened:
            if names:
                self.open(kind)
        elif added or dropped or again:
            self.ask(kind, added, dropped)

    def numbers(self, kind: Kind) -> dict[str, int]:
        """What it holds, in test words; an assignment without endpoints is none."""
        found = {name: read_number(kind, value) for name, value in self.held[kind].items()}
        return {name: number for name, number in found.items() if number} if kind is Kind.EDS else found

    # --- per protocol ---------------------------------------------------------------------------

    def list_values(self, response: Any) -> list[bytes]:
        raise NotImplementedError

    def list_removed(self, response: Any) -> set[str]:
        raise NotImplementedError

    def is_stale(self, kind: Kind, request: Any) -> bool:
        raise NotImplementedError

    def note_asked(self, kind: Kind, request: Any) -> None:
        raise NotImplementedError

    def open(self, kind: Kind) -> None:
        raise NotImplementedError

    def ask(self, kind: Kind, added: set[str], dropped: set[str]) -> None:
        raise NotImplementedError

    def apply(self, kind: Kind, response: Any) -> None:
        raise NotImplementedError

    def accept(self, kind: Kind, response: Any) -> None:
        raise NotImplementedError

    def reply(self, kind: Kind, response: Any, refusal: str | None) -> None:
        raise NotImplementedError


class SotwPeer(Peer):
    """State of the world."""

    dialect = STATE_OF_THE_WORLD

    def __init__(self, snapshot: Snapshot | None = None, *, refuses: bool = True) -> None:
        self.version: dict[Kind, str] = {}
        super().__init__(snapshot, refuses=refuses)

    def check(self, response: Any) -> None:
        super().check(response)
        kind = BY_TYPE_URL[response.type_url]
        assert response.version_info, "a version"
        assert all(one.type_url == response.type_url for one in response.resources), "all of the kind"
        assert response.resources or kind in ROOTS, "an empty answer says nothing"

    def list_values(self, response: Any) -> list[bytes]:
        return [one.value for one in response.resources]

    def list_removed(self, response: Any) -> set[str]:
        return set()

    def is_stale(self, kind: Kind, request: Any) -> bool:
        return self.newest_sent.get(kind, request.response_nonce) != request.response_nonce

    def note_asked(self, kind: Kind, request: Any) -> None:
        names = set(request.resource_names)
        self.asked[kind] = names or (
            {"*"} if kind in ROOTS and self.asked.get(kind, {"*"}) == {"*"} else set()
        )

    def open(self, kind: Kind) -> None:
        self.opened.add(kind)
        self._send(kind)

    def ask(self, kind: Kind, added: set[str], dropped: set[str]) -> None:
        self._send(kind)

    def apply(self, kind: Kind, response: Any) -> None:
        found = {read_name(kind, value): value for value in self.list_values(response)}
        if kind in ROOTS:
            self.held[kind] = found
        else:
            self.held[kind] |= {name: value for name, value in found.items() if name in self.names[kind]}

    def accept(self, kind: Kind, response: Any) -> None:
        self.version[kind] = response.version_info

    def reply(self, kind: Kind, response: Any, refusal: str | None) -> None:
        self._send(kind, refusal)

    def _send(self, kind: Kind, refusal: str | None = None) -> None:
        request = self.dialect.request(
            type_url=kind.type_url,
            version_info=self.version.get(kind, ""),
            response_nonce=self.nonce.get(kind, ""),
            resource_names=sorted(self.names[kind]),
        )
        request.node.id = "sotw-peer"
        if refusal is not None:
            request.error_detail.message = refusal
        self.requests.append(request)


class DeltaPeer(Peer):
    """Incremental."""

    dialect = DELTA

    def __init__(self, snapshot: Snapshot | None = None, *, refuses: bool = True) -> None:
        self.versions: dict[Kind, dict[str, str]] = {kind: {} for kind in Kind}
        super().__init__(snapshot, refuses=refuses)

    def check(self, response: Any) -> None:
        super().check(response)
        kind = BY_TYPE_URL[response.type_url]
        assert response.system_version_info, "a version"
        for one in response.resources:
            assert one.version, "a version of each resource"
            assert one.resource.type_url == response.type_url, "all of the kind"
            assert one.name == read_name(kind, one.resource.value), "the name of what is inside"
        removed = list(response.removed_resources)
        assert len(removed) == len(set(removed)), "no name twice"
        assert not set(removed) & {one.name for one in response.resources}, "there or not there"

    def list_values(self, response: Any) -> list[bytes]:
        return [one.resource.value for one in response.resources]

    def list_removed(self, response: Any) -> set[str]:
        return set(response.removed_resources)

    def is_stale(self, kind: Kind, request: Any) -> bool:
        return False

    def note_asked(self, kind: Kind, request: Any) -> None:
        subscribe = set(request.resource_names_subscribe)
        known = self.asked.setdefault(kind, {"*"} if kind in ROOTS and not subscribe else set())
        known |= subscribe
        known -= set(request.resource_names_unsubscribe)

    def open(self, kind: Kind) -> None:
        self.opened.add(kind)
        for name in self.versions[kind].keys() - self.held[kind].keys():
            del self.versions[kind][name]
        self._send(kind, subscribe=self.names[kind], held=self.versions[kind])

    def ask(self, kind: Kind, added: set[str], dropped: set[str]) -> None:
        if added or dropped:
            self._send(kind, subscribe=added, unsubscribe=dropped)

    def apply(self, kind: Kind, response: Any) -> None:
        for one in response.resources:
            if kind in ROOTS or one.name in self.names[kind]:
                self.held[kind][one.name] = one.resource.value
                self.versions[kind][one.name] = one.version
        for name in response.removed_resources:
            self.held[kind].pop(name, None)

    def accept(self, kind: Kind, response: Any) -> None:
        pass

    def reply(self, kind: Kind, response: Any, refusal: str | None) -> None:
        self._send(kind, nonce=response.nonce, refusal=refusal)

    def _send(
        self,
        kind: Kind,
        *,
        nonce: str = "",
        subscribe: Iterable[str] = (),
        unsubscribe: Iterable[str] = (),
        held: dict[str, str] | None = None,
        refusal: str | None = None,
    ) -> None:
        request = self.dialect.request(
            type_url=kind.type_url,
            response_nonce=nonce,
            resource_names_subscribe=sorted(subscribe),
            resource_names_unsubscribe=sorted(unsubscribe),
            initial_resource_versions=held or {},
        )
        request.node.id = "delta-peer"
        if refusal is not None:
            request.error_detail.message = refusal
        self.requests.append(request)


PEERS = (SotwPeer, DeltaPeer)
