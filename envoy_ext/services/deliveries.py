"""One client's request as the delivery adapter holds it, from its arrival to its end."""

from collections.abc import Callable
from typing import Final

from envoy_ext.domain.events import DeliveryClosed, Event, ResponseBody
from envoy_ext.domain.ids import AttemptId
from envoy_ext.ports import DeliverySink
from envoy_ext.services.live_exchange import LiveExchange
from envoy_ext.services.queues import Queues

NOTE_EVERY_S: Final = 0.5
"""How often it is noted that bytes come: whoever asks wants to know it to about a second."""


class Delivery:
    """Between the arrival and the exchange stands a question to the journal, for requests with an
    idempotency key, and for a repeat perhaps a wait. A client that leaves meanwhile is remembered, and
    nothing is opened for it. One that leaves later gives back its place in the line, or its slot, without a
    wait for any record.
    """

    __slots__ = ("_note_at", "_note_bytes", "_queues", "left", "live", "on_left", "sink")

    def __init__(self, sink: DeliverySink, note_bytes: Callable[[AttemptId], None], queues: Queues) -> None:
        self.sink = sink
        self._queues = queues
        self.live: LiveExchange | None = None
        self.left = False
        self.on_left: Callable[[], None] | None = None
        """Called when the client leaves, by whoever waits on its behalf."""
        self._note_bytes = note_bytes
        self._note_at = 0.0

    @property
    def keeps_answer(self) -> bool:
        """Whether its answer may be kept, for which its headers are wanted."""
        return self.live is not None and self.live.exchange.identity.keeps_answer

    def pass_chunk(self, data: bytes, at: float) -> bytes | None:
        """A chunk that changes nothing but counts: what of it, and of what was held back, goes to the client.

        None, and nothing has happened, when it may change more: then it is for `receive`. `at` is any clock's
        time, in seconds, by which the replica's bytes are noted now and then.
        """
        live = self.live
        if live is None or self.left:
            return None
        passed = live.pass_chunk(data)
        if passed is not None and at >= self._note_at:
            self._note_at = at + NOTE_EVERY_S
            attempt_id = live.exchange.released_attempt
            if attempt_id is not None:
                self._note_bytes(attempt_id)
        return passed

    def receive(self, event: Event) -> None:
        """An event of the delivery stream."""
        if isinstance(event, DeliveryClosed):
            self.left = True
            if self.on_left is not None:
                self.on_left()
        if self.live is None:
            return
        if self.left:
            identity = self.live.exchange.identity
            self._queues.leave(identity.pool, identity.operation_id)
        self.live.receive(event)
        attempt_id = self.live.exchange.released_attempt
        if attempt_id is not None and isinstance(event, ResponseBody):
            self._note_bytes(attempt_id)
