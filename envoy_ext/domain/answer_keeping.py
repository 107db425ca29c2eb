"""Collects one client's answer as it passes, so that its repeats can be given the same bytes.

What is collected is what the client is sent. It becomes a kept answer only when all of it was sent, and only
in the step that records a completed operation: whoever holds one of these asks for nothing else.
"""

from dataclasses import dataclass
from enum import StrEnum

from envoy_ext.domain import step
from envoy_ext.domain.kept_answer import KeptAnswer


class AnswersKept(StrEnum):
    """Whose answers are kept."""

    NON_STREAMING = "non_streaming"
    """Those in one piece, whatever the request asked for."""
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class KeepingPolicy:
    """`idempotency`, as far as it is about what is kept."""

    answers: AnswersKept = AnswersKept.NON_STREAMING
    max_bytes: int = 1 << 20
    """Of headers and body together."""
    refusals: bool = False
    """A replica's own 4xx too: for those whom nobody else tells what it said."""


class AnswerKeeping:
    """One answer under way. Fed with each reply to the client, in order, when it is sent."""

    __slots__ = ("_chunks", "_ended", "_headers", "_room", "_status", "_streams", "_wanted", "policy")

    def __init__(self, policy: KeepingPolicy) -> None:
        self.policy = policy
        self._wanted = policy.answers is not AnswersKept.NONE
        self._room = policy.max_bytes
        self._status = 0
        self._streams = False
        self._headers: tuple[tuple[str, str], ...] = ()
        self._chunks: list[bytes] = []
        self._ended = False

    @property
    def held_bytes(self) -> int:
        """What it holds of the body."""
        return sum(map(len, self._chunks))

    def note(self, reply: step.DeliveryReply) -> None:
        """What the client is sent. What will not be kept is let go of at once."""
        if not self._wanted:
            return
        match reply:
            case step.ForwardResponse():
                self._begin(reply)
            case step.ForwardBody():
                self._take(len(reply.data))
                if self._wanted:
                    self._chunks.append(reply.data)
                    self._ended = reply.end
            case step.AnswerHere():
                self._begin(_read_head(reply))
                self._take(len(reply.data))
                if self._wanted:
                    self._chunks.append(reply.data)
                    self._ended = True
            case step.RespondLocally() | step.ResetDelivery():
                self.drop()
            case _:
                pass  # the request's side

    def drop(self) -> None:
        """This answer is not kept."""
        self._wanted = False
        self._chunks.clear()
        self._headers = ()

    def build(self, *, last_word_said: bool) -> KeptAnswer | None:
        """The answer, None when it is not to be kept, or its client has not been sent all of it.

        `last_word_said`: the stream's own end was sent, and its client has not waited for the body's.
        """
        if not self._wanted or not (self._ended or last_word_said) or not self._is_kept(self._status):
            return None
        body = b"".join(self._chunks)
        if not self._streams and not _is_closed(body):
            return None
        return KeptAnswer(self._status, self._headers, body)

    def _begin(self, reply: step.ForwardResponse) -> None:
        self._status, self._headers, self._ended = reply.status, reply.headers, reply.end
        self._streams = reply.streams
        if not self._is_kept(reply.status) or (reply.streams and self.policy.answers is not AnswersKept.ALL):
            self.drop()
            return
        self._take(sum(len(name) + len(value) for name, value in reply.headers))

    def _is_kept(self, status: int) -> bool:
        return 200 <= status < (500 if self.policy.refusals else 300)

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            self.drop()


_CLOSED_BY = {b"{": b"}", b"[": b"]"}


def _is_closed(body: bytes) -> bool:
    """Whether a document ends as it began. One too long to be read (vectors are, soon), or of an API
    whose documents are not read, counts as completed when its framing was in order."""
    text = body.strip()
    return text[-1:] == _CLOSED_BY.get(text[:1], text[-1:])


def _read_head(own: step.AnswerHere) -> step.ForwardResponse:
    """The headers of an answer of the gateway's own, as those of a replica's."""
    return step.ForwardResponse(
        own.request_id,
        own.operation_id,
        attempts=0,
        may_append=False,
        status=200,
        headers=(("content-type", own.content_type),),
        streams=own.content_type.startswith("text/event-stream"),
    )
