"""What exchanges speak to: Envoy's two hops, its connections, people, and whoever follows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from envoy_ext.domain.events import Event
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.notes import Note
from envoy_ext.domain.records import Record
from envoy_ext.domain.silent_loss import Confirmation
from envoy_ext.domain.step import AttemptReply, DeliveryReply


class Observer(Protocol):
    """Where notes go: metrics and logs. Never raises, never waits."""

    def note(self, note: Note) -> None:
        """Take in one note of the core."""

    def note_bug(self, where: str, error: BaseException) -> None:
        """An exception that should not be: ours. It ended one exchange and nothing else."""

    def note_journal(self, seconds: float, failed: bool) -> None:
        """One append took this long, or could not be done."""


class TraceKind(StrEnum):
    """What a line of a trace tells."""

    EVENT = "event"
    """This came."""
    RECORDED = "recorded"
    """This is in the journal: its append has returned."""
    REPLY = "reply"
    """This is about to be sent."""
    NOTE = "note"
    """This was reported."""


class Trace(Protocol):
    """Where single exchanges are followed, for drills. Never raises, never waits; there is none by itself."""

    def add(
        self,
        operation_id: OperationId,
        kind: TraceKind,
        things: Iterable[Event | Record | DeliveryReply | AttemptReply | Note],
    ) -> None:
        """What came to an exchange, or followed from that, in the order in which it happened."""


class DeliverySink(Protocol):
    """The client's side of an exchange, as the services speak to it."""

    def send(self, reply: DeliveryReply) -> None:
        """Hand a reply to Envoy's ingress hop; after the stream's end it goes nowhere."""


class AttemptSink(Protocol):
    """One attempt's filter, as the services speak to it."""

    def send(self, reply: AttemptReply) -> None:
        """Hand a reply to Envoy's egress hop; after the stream's end it goes nowhere."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection of Envoy's, with a client or a replica, as Envoy names its two ends."""

    local_ip: str
    local_port: int
    peer_ip: str
    peer_port: int

    @property
    def peer(self) -> str:
        """`ip:port` of the other side."""
        host = f"[{self.peer_ip}]" if ":" in self.peer_ip else self.peer_ip
        return f"{host}:{self.peer_port}"


class Connections(Protocol):
    """The kernel's knowledge of Envoy's connections, where it is at hand. Never waits."""

    def read_acked(self, connection: Connection) -> int | None:
        """How many bytes the peer's machine has confirmed; None is not known."""

    def read_confirmation(self, connection: Connection) -> Confirmation | None:
        """Whether the peer's machine confirms what it is sent; None is not known."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a person is told of a request: where to find it, and no word of it."""

    operation_id: OperationId
    request_id: str
    request_class: str
    """As the configuration names it."""
    path: str
    body_sha256: str
    code: str
    """What it would have been refused with."""


class HandOffs(Protocol):
    """Where requests are handed to people."""

    async def hand_over(self, url: str, request: HandedOver, timeout_s: float) -> bool:
        """Whether it was taken, within so many seconds. Nothing is raised and nothing sent twice."""


class RunSender(Protocol):
    """The way of a job's run into Envoy."""

    async def send(
        self,
        name: str,
        request_id: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
    ) -> None:
        """Ask once, and wait for the end of the answer however long that takes, or of the way there.

        How the run ended is the journal's to say. Cancelled, it ends the request at once.
        """
