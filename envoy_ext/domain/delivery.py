"""The client's side of an exchange: what has been let out, and what may still be added.

    NEW ── request ──> FORWARDED ── headers ──> OPENING ── first delta ──> RESPONDING ── end / cut ──> ENDED
     │  └─> QUEUED ───────^  │                     │
     └──── our own answer ───┴─────────────────────┴─────────────────────────────────────────────────> ENDED

QUEUED: the request waits for a slot of its pool, and no replica has been asked.

OPENING: the response headers are with us, and wait for the first delta that the egress hop released
with them. A replica whose first delta never comes has delivered nothing, so its client gets an error
of ours with a status, and not the begin of an answer. For want of any bytes Envoy leaves no other
way: before it has sent us body, it takes body of ours for a mistake and breaks the stream off.

Bytes are never changed. They are let out up to the last whole event; the bytes of a half event
wait for its rest, so that a terminal event never lands inside one and a client's parser never
sees a broken piece of JSON. Above the inspector's bound nothing is held any more.

Whether the stream's filter is still there (`closed`) is evidence for the ending and not a state:
replies after it go nowhere.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.events import ResponseStarted
from envoy_ext.domain.inspection import (
    MAX_HELD_BYTES,
    BodyKind,
    Inspector,
    Verdict,
    choose_body_kind,
)


class DeliveryState(StrEnum):
    """Where the client's side stands."""

    NEW = "new"
    QUEUED = "queued"
    FORWARDED = "forwarded"
    OPENING = "opening"
    RESPONDING = "responding"
    ENDED = "ended"


_S = DeliveryState
TRANSITIONS: dict[DeliveryState, frozenset[DeliveryState]] = {
    _S.NEW: frozenset({_S.QUEUED, _S.FORWARDED, _S.ENDED}),
    _S.QUEUED: frozenset({_S.FORWARDED, _S.ENDED}),
    _S.FORWARDED: frozenset({_S.OPENING, _S.ENDED}),
    _S.OPENING: frozenset({_S.RESPONDING, _S.ENDED}),
    _S.RESPONDING: frozenset({_S.ENDED}),
    _S.ENDED: frozenset(),
}


@dataclass(slots=True)
class Delivery:
    """One client's stream; changed only by its exchange."""

    family: ApiFamily
    choices: int
    max_event_bytes: int
    state: DeliveryState = DeliveryState.NEW
    closed: bool = False
    status: int | None = None
    kind: BodyKind = BodyKind.OPAQUE
    inspector: Inspector | None = None
    released_bytes: int = 0
    _tail: bytearray = field(default_factory=bytearray)

    def move(self, to: DeliveryState) -> None:
        """Follow the table; an impossible move is a bug of ours."""
        if to not in TRANSITIONS[self.state]:
            raise ImpossibleEvent(f"delivery is {self.state} and cannot become {to}")
        self.state = to

    def queue(self) -> None:
        """The request waits for a slot."""
        self.move(DeliveryState.QUEUED)

    def forward(self) -> None:
        """The request goes on to the egress hop."""
        self.move(DeliveryState.FORWARDED)

    def end(self) -> None:
        """The client has been sent its last byte by us."""
        self.move(DeliveryState.ENDED)

    def start(self, response: ResponseStarted) -> None:
        """Take in the response headers that the client is to get."""
        self.move(DeliveryState.OPENING)
        self.status = response.status
        self.kind = choose_body_kind(self.family, response.content_type, response.content_encoding)
        if response.status >= 400:
            # An HTTP error's body is the replica's own answer, not a stream to watch.
            self.kind = BodyKind.OPAQUE
        self.inspector = Inspector(self.family, self.kind, self.max_event_bytes, choices=self.choices)

    def open(self) -> None:
        """The response headers go to the client."""
        self.move(DeliveryState.RESPONDING)

    def take(self, data: bytes) -> bytes:
        """Take in bytes; what of them, and of those held back, may go to the client."""
        inspector = self._inspector()
        held_from = inspector.received - len(self._tail)
        inspector.feed(data)
        out = self._cut(data, inspector.boundary - held_from if self.readable else 0)
        self.released_bytes += len(out)
        return out

    def pass_alike(self, data: bytes) -> bool:
        """Whether bytes of an open answer were let out unread: whole events like one that was read.

        Behind a whole event nothing is held back.
        """
        inspector = self.inspector
        if inspector is None or not inspector.feed_alike(data):
            return False
        self.released_bytes += len(data)
        return True

    def take_tail(self) -> bytes:
        """The bytes of the half event that was held back: they go out as they are."""
        out = bytes(self._tail)
        self._tail.clear()
        self.released_bytes += len(out)
        return out

    def _cut(self, data: bytes, ready: int) -> bytes:
        tail = self._tail
        if not tail and ready == len(data):
            return data
        if ready <= 0:
            tail += data
            return b""
        tail += data
        out = bytes(tail[:ready])
        del tail[:ready]
        return out

    def _inspector(self) -> Inspector:
        if self.inspector is None:
            raise ImpossibleEvent("response body before response headers")
        return self.inspector

    @property
    def client_waiting(self) -> bool:
        """Whether the client is there and may still be sent something."""
        return not self.closed and self.state is not DeliveryState.ENDED

    @property
    def response_awaited(self) -> bool:
        """Whether the egress hop has not answered yet."""
        return self.state is DeliveryState.FORWARDED

    @property
    def answering(self) -> bool:
        """Whether an answer of a replica is under way to the client."""
        return self.state in (DeliveryState.OPENING, DeliveryState.RESPONDING)

    @property
    def readable(self) -> bool:
        """Whether there is something to read for the client: a first delta, or the replica's last word.

        Above the bounds the wait is over too: of an event, and of what an attempt was held for.
        Envoy's patience with held headers ends after seconds.
        """
        inspector = self.inspector
        if inspector is None:
            return False
        too_much = inspector.received > min(self.max_event_bytes, MAX_HELD_BYTES)
        return inspector.first_delta_seen or self.last_word_said or too_much

    @property
    def may_append(self) -> bool:
        """Whether an event of ours can follow what was let out."""
        inspector = self.inspector
        return self.kind in (BodyKind.SSE, BodyKind.NDJSON) and inspector is not None and inspector.watching

    @property
    def received_bytes(self) -> int:
        """Bytes that reached the delivery filter."""
        return self.inspector.received if self.inspector is not None else 0

    @property
    def deltas(self) -> int:
        """Readable deltas let out."""
        return self.inspector.deltas if self.inspector is not None else 0

    @property
    def output_tokens(self) -> int:
        """Output tokens let out: the engine's own count where it states one, else the deltas."""
        return self.inspector.output_tokens if self.inspector is not None and self.released_bytes else 0

    @property
    def first_delta_passed(self) -> bool:
        """Whether a client could have read a part of the answer: a first delta is let out when it comes."""
        return self.inspector is not None and self.inspector.first_delta_seen

    def judge_end(self) -> Verdict:
        """What an orderly end here is worth."""
        return self._inspector().verdict_at_eof()

    @property
    def last_word_said(self) -> bool:
        """Whether the replica's own end or error is out: nothing that follows would be read."""
        inspector = self.inspector
        return inspector is not None and (inspector.done_marker or inspector.error is not None)

    @property
    def whole_answer_passed(self) -> bool:
        """Whether the API's terminal mark was let out for every choice, though the body has not ended."""
        if not self.may_append or (self.kind is BodyKind.NDJSON and self._tail):
            return False
        return self.judge_end() is Verdict.COMPLETE

    @property
    def last_word(self) -> Verdict | None:
        """What the replica's last word was worth, None while it had more to say.

        Clients close the connection when they have read it and do not wait for the end of the body.
        """
        if self.inspector is None or self.state is DeliveryState.OPENING:
            return None
        verdict = self.inspector.verdict_at_eof()
        if self.last_word_said or self.whole_answer_passed or verdict is Verdict.ABORTED:
            return verdict
        return None

    @property
    def malformed_events(self) -> int:
        """Events that could not be read and were passed on."""
        return self.inspector.malformed_events if self.inspector is not None else 0

    @property
    def model_revision(self) -> str | None:
        """What the engine calls the build that answered, when it says so."""
        return self.inspector.model_revision if self.inspector is not None else None
