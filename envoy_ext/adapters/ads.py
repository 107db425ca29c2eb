"""The aggregated discovery service: many Envoys, one snapshot, each stream a session of its own.

Whoever carries the streams opens an `AdsSession` for each and feeds it; whoever knows the fleet
publishes to the hub. Everything runs on one event loop and nothing waits: a session has at most one
answer of each kind on its way, so neither a slow Envoy nor a busy fleet makes a queue grow.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.domain.errors import PeerViolation
from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.session import Nacked, Note, NotServed, Pushed, Session, Turn, shorten
from envoy_ext.xds.snapshot import Snapshot

DIALECTS: tuple[Dialect, ...] = (STATE_OF_THE_WORLD, DELTA)
"""Both gRPC methods of the service: `method`, `request` and `response` of each are what a server needs."""


@dataclass(frozen=True, slots=True)
class AdsStatistics:
    """What the hub is doing; counts are since its start."""

    streams: int
    settled: int
    """Of those, the ones whose client took all that is offered to it."""
    nodes: tuple[str, ...]
    pushes: dict[Kind, int]
    refusals: dict[Kind, int]


class AdsHub:
    """Holds what is offered and brings every session to it. Used from one event loop."""

    def __init__(
        self,
        note: Callable[[Note], None],
        note_bug: Callable[[str, BaseException], None],
    ) -> None:
        self._note = note
        self._note_bug = note_bug
        self._snapshot: Snapshot | None = None
        self._sessions: dict[AdsSession, None] = {}  # in the order they came
        self._push_planned = False
        self._pushes = dict.fromkeys(Kind, 0)
        self._refusals = dict.fromkeys(Kind, 0)
        self._moved = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot | None:
        """What is offered; None before the first publication, while requests wait for it."""
        return self._snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Offer this from now on. Several publications in one turn of the event loop are one push.

        Raises:
            ValueError: its resources do not fit together; what was offered before still is.
        """
        if mistakes := snapshot.find_inconsistencies():
            raise ValueError("; ".join(mistakes))
        unchanged = self._snapshot is not None and self._snapshot.versions == snapshot.versions
        self._snapshot = snapshot
        if not (unchanged or self._push_planned):
            self._push_planned = True
            asyncio.get_running_loop().call_soon(self._push)

    async def wait_taken(self, kind: Kind) -> None:
        """Until an Envoy has asked for this kind and taken all of it that is offered at that moment."""
        while self._push_planned or not any(session.has_taken(kind) for session in self._sessions):
            self._moved.clear()
            await self._moved.wait()

    def statistics(self) -> AdsStatistics:
        """A picture of now."""
        return AdsStatistics(
            streams=len(self._sessions),
            settled=sum(session.is_settled for session in self._sessions),
            nodes=tuple(sorted({session.node for session in self._sessions})),
            pushes=dict(self._pushes),
            refusals=dict(self._refusals),
        )

    def add(self, session: "AdsSession") -> None:
        """A stream has begun."""
        self._sessions[session] = None

    def remove(self, session: "AdsSession") -> None:
        """A stream is over."""
        self._sessions.pop(session, None)

    def report(self, turn: Turn) -> None:
        """Count a turn and hand its notes on."""
        self._moved.set()
        for note in turn.notes:
            if isinstance(note, Pushed):
                self._pushes[note.kind] += 1
            elif isinstance(note, Nacked):
                self._refusals[note.kind] += 1
            self._note(note)

    def _push(self) -> None:
        self._push_planned = False
        assert self._snapshot is not None
        for session in list(self._sessions):
            try:
                session.push(self._snapshot)
            except Exception as error:
                # A bug that one stream runs into costs that stream; its Envoy comes back on a fresh one.
                self._note_bug("xds push", error)
                session.abort()


class AdsSession:
    """One stream: a `Session` of the transport. Every method runs on the event loop."""

    def __init__(self, hub: AdsHub, outbox: Outbox, dialect: Dialect) -> None:
        self._hub = hub
        self._outbox = outbox
        self._session = Session(dialect)
        hub.add(self)
        if hub.snapshot is not None:
            self._session.publish(hub.snapshot)  # nothing was asked for: nothing goes out

    @property
    def node(self) -> str:
        """Who the client says it is."""
        return self._session.node

    @property
    def is_settled(self) -> bool:
        """The client took all that is offered to it."""
        return self._session.is_settled

    def has_taken(self, kind: Kind) -> bool:
        """The client asked for this kind, and took all of it that is offered to it."""
        return self._session.has_taken(kind)

    def receive(self, message: Any) -> None:
        """Take in one request."""
        try:
            turn = self._session.receive(message)
        except PeerViolation as violation:
            self._hub.report(Turn(notes=(NotServed(shorten(message.type_url), str(violation)),)))
            self.abort()
            return
        self._send(turn)

    def push(self, snapshot: Snapshot) -> None:
        """What is offered has changed."""
        self._send(self._session.publish(snapshot))

    def closed(self) -> None:
        """The stream is over."""
        self._hub.remove(self)

    def abort(self) -> None:
        """End the stream with an error."""
        self._hub.remove(self)
        self._outbox.abort()

    def _send(self, turn: Turn) -> None:
        for response in turn.responses:
            self._outbox.send(response)
        self._hub.report(turn)
