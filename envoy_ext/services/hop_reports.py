"""What Envoy's hops tell of exchanges in flight: how attempts and answers end, and how far they are.

Most of it is from the access logs. A lost connection is looked at before its exchange hears of it.
"""

from envoy_ext.domain.events import (
    AttemptLogged,
    AttemptProgressed,
    AttemptUnanswered,
    AttemptUnconfirmed,
    ExchangeLogged,
    ExchangeProgressed,
    LogCause,
)
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.silent_loss import is_unconfirmed
from envoy_ext.ports import Clock, Connection, Connections
from envoy_ext.services.background import Background
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fences import Fences
from envoy_ext.services.live_exchange import LiveExchange


class HopReports:
    """The service the access logs talk to. Runs on the event loop of the exchanges."""

    def __init__(
        self,
        exchanges: Exchanges,
        clock: Clock,
        background: Background,
        fences: Fences | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._exchanges = exchanges
        self._clock = clock
        self._background = background
        self._fences = fences
        self._connections = connections

    def log_attempt(
        self, attempt_id: str, cause: LogCause, address: str, body_bytes: int, detail: str
    ) -> None:
        """The egress hop logged an attempt's end. Its exchange's id is not in that log."""
        live = self._exchanges.find_attempt(AttemptId(attempt_id))
        if live is not None:
            replica = self._exchanges.find_replica(live, "", address)
            logged = AttemptLogged(AttemptId(attempt_id), cause, replica, body_bytes, detail, address)
            self.tell_loss(live, logged)

    def tell_loss(self, live: LiveExchange, lost: AttemptLogged | AttemptUnanswered) -> None:
        """Hand on how an attempt ended, once that is known as well as it can be."""
        if self._fences is None or lost.cause is not LogCause.UPSTREAM_RESET or not lost.address:
            live.receive(lost)
            return
        self._background.run(self._fences.tell_loss(live, lost, lambda: self._is_open(live)))

    def log_exchange(self, exchange_id: str, cause: LogCause, detail: str) -> None:
        """The ingress hop logged an exchange's end."""
        live = self._exchanges.find(exchange_id)
        if live is not None:
            live.receive(ExchangeLogged(cause, detail))

    def note_attempt_progress(self, attempt_id: str, body_bytes: int, connection: Connection) -> None:
        """The egress hop tells how much of an attempt's answer has left it, and where its request goes."""
        live = self._exchanges.find_attempt(AttemptId(attempt_id))
        if live is None:
            return
        live.receive(AttemptProgressed(AttemptId(attempt_id), body_bytes))
        if connection.peer_ip:
            self._look_for_confirmation(live, AttemptId(attempt_id), connection)

    def _look_for_confirmation(
        self, live: LiveExchange, attempt_id: AttemptId, connection: Connection
    ) -> None:
        """A request that was sent into a cut network is missed by nobody else for 15 minutes."""
        waited_s = live.exchange.read_wait(attempt_id, self._clock.now())
        if waited_s is None or self._fences is None or self._connections is None:
            return
        told = self._connections.read_confirmation(connection)
        if told is None or not is_unconfirmed(told, waited_s):
            return
        address = connection.peer
        replica = self._exchanges.find_replica(live, "", address)
        lost = AttemptUnconfirmed(attempt_id, LogCause.UPSTREAM_RESET, replica, address)
        self._background.run(self._fences.tell_unconfirmed(live, lost, lambda: self._is_open(live)))

    def note_exchange_progress(self, exchange_id: str, taken_bytes: int, connection: Connection) -> None:
        """The ingress hop tells how much of an exchange's answer its client's connection has taken.

        Not listened to while replies wait for the journal: what has not been sent cannot be taken.
        """
        live = self._exchanges.find(exchange_id)
        if live is None or live.writing:
            return
        acked_bytes = None
        if self._connections is not None and live.exchange.held_up:
            acked_bytes = self._connections.read_acked(connection)
        live.receive(ExchangeProgressed(taken_bytes, acked_bytes))

    def _is_open(self, live: LiveExchange) -> bool:
        return self._exchanges.find(live.exchange.identity.exchange_id) is not None
