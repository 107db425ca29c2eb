"""What workers ask of the gateway about their leases. Leases live in their exchanges; this finds them.

An exchange may be over and forgotten while its attempt is still computed: then the attempt's slot is what is
left of it, and a worker's word still counts.
"""

from enum import StrEnum

from envoy_ext.domain.events import AttemptStopped
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.ports import Clock
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.own_streams import OwnStreams


class LeaseAnswer(StrEnum):
    """What a worker that asks for more time is told."""

    GRANTED = "granted"
    REFUSED = "refused"
    """Its attempt is not wanted any more. Final."""
    UNKNOWN = "unknown"
    """Not an attempt of this gateway, or one that ended long ago."""
    NOT_NOW = "not_now"
    """This gateway cannot be told from one that is gone, and so grants nothing. It may be able to again."""


class Leases:
    """Runs on the event loop of its exchanges; nothing waits."""

    def __init__(self, exchanges: Exchanges, streams: OwnStreams, clock: Clock) -> None:
        self._exchanges = exchanges
        self._streams = streams
        self._clock = clock

    def renew(self, operation_id: OperationId, attempt_id: AttemptId, token: FencingToken) -> LeaseAnswer:
        """Another time to live for an attempt, or the end of it."""
        live = self._exchanges.find_attempt(attempt_id)
        if live is None and self._streams.is_dropped(attempt_id):
            return LeaseAnswer.REFUSED
        if live is None or live.exchange.identity.operation_id != operation_id:
            return LeaseAnswer.UNKNOWN
        if not live.may_be_given_time:
            return LeaseAnswer.NOT_NOW
        granted = live.exchange.renew(attempt_id, token, self._clock.now())
        return LeaseAnswer.GRANTED if granted else LeaseAnswer.REFUSED

    def note_stopped(self, operation_id: OperationId, attempt_id: AttemptId, token: FencingToken) -> bool:
        """Generation has stopped; False when it is no attempt of this gateway."""
        live = self._exchanges.find_attempt(attempt_id)
        if live is None:
            return self._streams.prove_stopped(attempt_id)
        if live.exchange.identity.operation_id != operation_id:
            return False
        live.receive(AttemptStopped(attempt_id, token))
        return True
