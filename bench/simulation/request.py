"""One HTTP request between a client and the gateway: what it asks for, and what its client hears."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, eq=False)
class Request:
    """Its gateway calls one of `answered`, `refused` and `broken` once, at most; none after `left`."""

    number: int
    kind: str
    caller: str
    stream: bool
    prompt: int
    answer: int
    client: "Listener"
    deadline: float
    """When its answer is of no use any more; whether it says so is the run's business."""
    sent_at: float = 0.0
    over: bool = False

    def first_word(self) -> None:
        """The first delta has come; only who streams hears of it."""
        if not self.over and self.stream:
            self.client.hear_first(self)

    def answered(self) -> None:
        """The whole answer has come."""
        self._end()
        self.client.hear_answer(self)

    def refused(self, status: int, retry_after_s: float | None, sdk_retries: bool = True) -> None:
        """An error came instead of an answer. `sdk_retries` False: `x-should-retry: false`."""
        self._end()
        self.client.hear_refusal(self, status, retry_after_s, sdk_retries)

    def broken(self) -> None:
        """The stream ended in the midst of the answer."""
        self._end()
        self.client.hear_break(self)

    def _end(self) -> None:
        if self.over:
            raise AssertionError(f"request {self.number} ends twice")
        self.over = True


class Listener(Protocol):
    """The client behind a request."""

    def hear_first(self, request: Request) -> None: ...
    def hear_answer(self, request: Request) -> None: ...
    def hear_refusal(
        self, request: Request, status: int, retry_after_s: float | None, sdk_retries: bool
    ) -> None: ...
    def hear_break(self, request: Request) -> None: ...


class Gateway(Protocol):
    """What stands before the replicas."""

    def receive(self, request: Request) -> None:
        """A client has sent a request."""

    def leave(self, request: Request) -> None:
        """Its client has closed the connection before the end."""
