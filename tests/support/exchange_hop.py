"""What an in-memory Envoy is made of: the egress hop's exchange of one attempt, and the client."""

import json
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.events import (
    AttemptAnswered,
    AttemptBody,
    AttemptClosed,
    AttemptLogged,
    AttemptUnanswered,
    AttemptUnconfirmed,
    LogCause,
    ResponseBody,
    ResponseStarted,
)
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.step import AnswerHere
from tests.support.exchange_builders import SSE

if TYPE_CHECKING:
    from tests.support.exchange_envoy import Envoy

DELIVERY, ATTEMPT_LOG, EXCHANGE_LOG = "delivery", "attempt log", "exchange log"


class At(Enum):
    """How far one attempt has come in the egress hop."""

    GATE = auto()
    REPLICA = auto()
    LOST = auto()
    """Envoy's own answer in the replica's place waits for the filter to let it go."""
    HELD = auto()
    PASSING = auto()
    OVER = auto()


@dataclass
class Hop:
    """One attempt's exchange of the egress hop."""

    envoy: "Envoy"
    number: int
    id: AttemptId
    at: At = At.GATE
    replica: str | None = None
    head: ResponseStarted | None = None
    held: list[tuple[bytes, bool]] = field(default_factory=list)
    sent: bytearray = field(default_factory=bytearray)
    """All body bytes the replica has sent."""
    passed_bytes: int = 0
    """Those that left the hop towards the client."""
    cause: LogCause = LogCause.OTHER
    """Why it was lost, if it was."""
    patience: Counter[At] = field(default_factory=Counter)
    """How often its time was extended."""
    passes: int | None = None
    """With a number, the replica dies as the held answer is let go: so many chunks still leave the hop."""

    @property
    def source(self) -> str:
        return f"attempt {self.number}"

    # --- what a replica does ---

    def answers(
        self, *chunks: bytes, status: int = 200, type: str = SSE, by: str | None = "", end: bool = False
    ) -> "Hop":
        """Send response headers and chunks; `by` is the replica whose address Envoy reports."""
        self.begins(status, type, end=end and not chunks, by=self.replica if by == "" else by)
        for number, data in enumerate(chunks, 1):
            self.sends(data, end=end and number == len(chunks))
        return self

    def begins(self, status: int, type: str, *, end: bool, by: str | None) -> None:
        assert self.at is At.REPLICA, f"attempt {self.number} was not sent to a replica"
        self.at = At.HELD
        self.head = ResponseStarted(status, type, "", replay_mark=False, refusal=None, end=end)
        replica = None if by is None else ReplicaId(by)
        self.envoy.tell(self.source, AttemptAnswered(self.id, status, type, "", replica, end))

    def sends(self, *chunks: bytes, end: bool = False) -> "Hop":
        for number, data in enumerate(chunks, 1):
            self._send(data, end=end and number == len(chunks))
        return self

    def ends(self) -> None:
        """End the answer in order."""
        self._send(b"", end=True)

    def _send(self, data: bytes, *, end: bool) -> None:
        assert self.at in (At.HELD, At.PASSING, At.OVER)
        if self.at is At.OVER:
            return
        self.sent += data
        if self.at is At.HELD:
            self.held.append((data, end))
            self.envoy.tell(self.source, AttemptBody(self.id, data, end))
        else:
            self.pass_on(data, end)

    def is_lost(self, cause: LogCause = LogCause.UPSTREAM_RESET) -> None:
        """The connection to the replica breaks, or none is made."""
        assert self.at is not At.GATE
        if self.at in (At.LOST, At.OVER):
            return
        if self.at is At.REPLICA:
            # Its local reply passes the filter; once headers are held it goes past it.
            self.at, self.cause = At.LOST, cause
            replica = None if self.replica is None else ReplicaId(self.replica)
            self.envoy.tell(self.source, AttemptUnanswered(self.id, cause, replica, "upstream_reset"))
            return
        passing = self.at is At.PASSING
        with self.envoy.at_once():
            self.over(cause, "upstream_reset")
            if not passing:
                self.envoy.take_failure(self, status=502, mark=True, lost=cause)

    def confirms_nothing(self) -> None:
        """It is not there any more, and the hop does not know: the sidecar has looked by itself."""
        replica = None if self.replica is None else ReplicaId(self.replica)
        unconfirmed = AttemptUnconfirmed(self.id, LogCause.UPSTREAM_TIMEOUT, replica, "10.0.0.1:8000")
        self.envoy.tell(f"look at {self.source}", unconfirmed)

    # --- what the hop does ---

    def pass_on(self, data: bytes, end: bool) -> None:
        self.passed_bytes += len(data)
        with self.envoy.at_once():
            self.envoy.tell(DELIVERY, ResponseBody(data, end))
            if end:
                self.over(LogCause.COMPLETED, "via_upstream")

    def over(self, cause: LogCause, detail: str) -> None:
        """The hop's exchange ends, and is logged."""
        started, released = self.at is not At.GATE, self.at is At.PASSING
        self.at = At.OVER
        if not released:
            self.envoy.tell(self.source, AttemptClosed(self.id))
        if started:
            replica = None if self.replica is None else ReplicaId(self.replica)
            entry = AttemptLogged(self.id, cause, replica, self.passed_bytes, detail)
            self.envoy.tell(ATTEMPT_LOG, entry)


@dataclass
class Client:
    """What reached the client."""

    status: int | None = None
    attempts: int | None = None
    body: bytearray = field(default_factory=bytearray)
    error: ClientError | None = None
    """Answered with this, in place of a response."""
    own_answer: AnswerHere | None = None
    """Answered with this text of the gateway's."""
    ended: bool = False
    """The body came to an orderly end."""
    reset: bool = False
    """We broke the stream off."""
    cut: bool = False
    """Envoy closed the connection in mid-answer."""
    left: bool = False

    @property
    def over(self) -> bool:
        answered = self.error is not None or self.own_answer is not None
        return self.ended or self.reset or self.cut or self.left or answered

    @property
    def events(self) -> list[bytes]:
        """The events of an event stream; it must not end inside one."""
        assert self.body == b"" or self.body.endswith(b"\n\n"), bytes(self.body[-40:])
        return [bytes(one) for one in self.body.split(b"\n\n")[:-1]]

    @property
    def last_event(self) -> dict[str, object]:
        """What the last event's data says."""
        lines = self.events[-1].splitlines()
        data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data:")]
        assert len(data) == 1
        read = json.loads(data[0])
        assert isinstance(read, dict)
        return read

    @property
    def code(self) -> str | None:
        return None if self.error is None else self.error.code
