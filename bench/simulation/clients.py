"""The clients: what wants an answer, the SDK that it asks with, and the person who reloads.

An intent is an answer that somebody wants once, however often it is asked for. Its SDK retries as OpenAI's
does (`compute_retry_delay`; `tests/bench/test_simulation_clients.py` asks the real one). A person drops a
call that has shown no first word in time and asks again, and asks again after an error, some seconds later.
"""

from random import Random

from bench.simulation.events import Events, Timer
from bench.simulation.request import Gateway, Request
from bench.simulation.tally import Tally
from bench.simulation.workload import Kind

MAX_RETRIES = 2
INITIAL_DELAY_S, MAX_DELAY_S = 0.5, 8.0
LONGEST_RETRY_AFTER_S = 120.0
"""OpenAI's Python SDK 3; its versions before 2 took 60 s at most, and retried sooner than told above that."""
RELOAD_S = (1.0, 5.0)
"""A person needs so long to ask again."""


def compute_retry_delay(retries: int, retry_after_s: float | None, random: Random) -> float:
    """How long the SDK waits before its next try; `retries` is how many it has made."""
    if retry_after_s is not None and 0 < retry_after_s <= LONGEST_RETRY_AFTER_S:
        return retry_after_s
    return min(INITIAL_DELAY_S * 2**retries, MAX_DELAY_S) * (1 - 0.25 * random.random())


def may_retry(status: int, retry_after_s: float | None, sdk_retries: bool) -> bool:
    """Whether the SDK tries again after this answer, if it has a try left."""
    if retry_after_s is not None and retry_after_s > LONGEST_RETRY_AFTER_S:
        return False
    return sdk_retries and (status in (408, 409, 429) or status >= 500)


class Intent:
    """One answer that is wanted, and everything that is done to get it."""

    __slots__ = (
        "answer",
        "call",
        "caller",
        "kind",
        "over",
        "patience",
        "prompt",
        "reloads",
        "request",
        "retries",
        "timer",
        "wanted_at",
        "world",
    )

    def __init__(self, world: "Clients", kind: Kind, caller: str, prompt: int, answer: int) -> None:
        self.world = world
        self.kind = kind
        self.caller = caller
        self.prompt = prompt
        self.answer = answer
        self.wanted_at = world.events.time
        self.over = False
        self.request: Request | None = None
        self.reloads = 0
        self.retries = 0
        self.call = 0
        self.timer: Timer | None = None
        """Of the SDK: its timeout, or its next try."""
        self.patience: Timer | None = None

    def begin_call(self) -> None:
        """The person, or the program, asks."""
        self.retries = 0
        self.call += 1
        if self.kind.patience_s is not None:
            least, mean = self.kind.patience_s
            wait_s = least + self.world.random.expovariate(1 / mean)
            self.patience = self.world.events.after(wait_s, self._lose_patience)
        self._send()

    # --- what the SDK does --------------------------------------------------------------------

    def _send(self) -> None:
        world = self.world
        self.timer = world.events.after(self.kind.timeout_s, self._time_out)
        self.request = world.send(self)

    def _time_out(self) -> None:
        world, request = self.world, self.request
        if request is not None:
            self.request = None
            world.leave(request)
        self._try_again(None)

    def _try_again(self, retry_after_s: float | None) -> None:
        if self.retries >= MAX_RETRIES:
            self._fail_call()
            return
        delay_s = compute_retry_delay(self.retries, retry_after_s, self.world.random)
        self.retries += 1
        self._set_timer(self.world.events.after(delay_s, self._send))

    def hear_first(self, request: Request) -> None:
        """The first word: nobody is impatient any more, and the SDK has its bytes."""
        self._set_timer(None)
        self._end_patience()

    def hear_answer(self, request: Request) -> None:
        """The whole answer."""
        late = self.world.events.time > self.wanted_at + self.kind.deadline_s
        self._end("late" if late else "good")

    def hear_refusal(
        self, request: Request, status: int, retry_after_s: float | None, sdk_retries: bool
    ) -> None:
        """An error instead of an answer."""
        self.request = None
        if may_retry(status, retry_after_s, sdk_retries):
            self._try_again(retry_after_s)
        else:
            self._fail_call()

    def hear_break(self, request: Request) -> None:
        """No SDK repeats a stream of which it has given a part."""
        self.request = None
        self._fail_call()

    # --- what the person does -----------------------------------------------------------------

    def _lose_patience(self) -> None:
        request, self.request = self.request, None
        if request is not None:
            self.world.leave(request)
        self._fail_call()

    def _fail_call(self) -> None:
        """The call has failed, or was given up: ask again, or do without."""
        self._set_timer(None)
        self._end_patience()
        now = self.world.events.time
        if self.reloads >= self.kind.reloads or now >= self.wanted_at + self.kind.deadline_s:
            self._end("failed")
            return
        self.reloads += 1
        self._set_timer(self.world.events.after(self.world.random.uniform(*RELOAD_S), self.begin_call))

    def _end(self, how: str) -> None:
        if self.over:
            raise AssertionError("an intent ends twice")
        self.over = True
        self._set_timer(None)
        self._end_patience()
        self.world.end(self, how)

    def _set_timer(self, timer: Timer | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def _end_patience(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


class Clients:
    """All of them, before one gateway."""

    def __init__(self, events: Events, random: Random, tally: Tally) -> None:
        self.events = events
        self.random = random
        self.tally = tally
        self.open = 0
        """Intents that are neither served nor given up."""
        self.gateway: Gateway
        self._sent = 0

    def want(self, kind: Kind, caller: str, prompt: int, answer: int) -> None:
        """Somebody wants an answer of so many tokens to a prompt of so many."""
        self.tally.note_wanted(kind.name, caller)
        self.open += 1
        Intent(self, kind, caller, prompt, answer).begin_call()

    def send(self, intent: Intent) -> Request:
        """One request of an intent; it may be refused before this returns."""
        self._sent += 1
        kind = intent.kind
        request = Request(
            number=self._sent,
            kind=kind.name,
            caller=intent.caller,
            stream=kind.stream,
            prompt=intent.prompt,
            answer=intent.answer,
            client=intent,
            deadline=intent.wanted_at + kind.deadline_s,
            sent_at=self.events.time,
        )
        self.tally.note_sent(kind.name)
        # Behind the clients' own turn: a refusal must not come before the request is known to be sent.
        self.events.after(0.0, self._deliver, request)
        return request

    def _deliver(self, request: Request) -> None:
        if not request.over:
            self.gateway.receive(request)

    def leave(self, request: Request) -> None:
        """The client closes its connection."""
        request.over = True
        self.tally.note_left()
        self.gateway.leave(request)

    def end(self, intent: Intent, how: str) -> None:
        """An intent is over."""
        self.open -= 1
        self.tally.note_end(intent, how)
