"""The facts an event can state, and how its fields are read without trusting their types."""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.deltas.errors import StreamError

JsonObject = dict[str, object]

ABORT_WORDS: Final = frozenset({"abort", "aborted", "cancelled", "canceled", "error"})
"""Finish words that say the engine gave the answer up. vLLM and SGLang write `abort`; the rest are
what engines and the Responses API use for the same."""

STRAY_CHOICE: Final = -1
"""Stands for every choice whose index is not usable, so that a stream cannot make us remember an
unbounded number of them."""
_MAX_CHOICE: Final = 65_535
_MAX_TOKENS: Final = 1_000_000_000
"""No answer has a billion tokens, and what is larger may not fit a journal's integer."""
_MAX_REVISION_CHARS: Final = 128


@dataclass(frozen=True, slots=True)
class EventFacts:
    """What one event states."""

    deltas: int = 0
    """Readable deltas; a chunk of several choices may carry several."""
    output_tokens: int | None = None
    """Tokens generated so far, when the event states usage."""
    started: tuple[int, ...] = ()
    """Choices the event speaks of. APIs with one answer call it choice 0."""
    finished: tuple[int, ...] = ()
    """Choices that came to their terminal mark as whole answers."""
    aborted: bool = False
    """The engine says the answer is not whole (abort, cancelled, incomplete)."""
    over: bool = False
    """Clients read nothing after this event."""
    error: StreamError | None = None
    """An error event; nothing else is stated then but `over`."""
    model_revision: str | None = None
    """`system_fingerprint`, when given."""


NOTHING: Final = EventFacts()
ONE_DELTA: Final = EventFacts(deltas=1, started=(0,))
"""By far the most frequent facts; one object spares building it for each token."""


def read_choice(value: object) -> int:
    """Read a choice's index; absent means the first one."""
    if value is None:
        return 0
    if isinstance(value, int) and 0 <= value <= _MAX_CHOICE:
        return int(value)
    return STRAY_CHOICE


def read_tokens(usage: object, *names: str) -> int | None:
    """Read the first usable count under one of the names of a usage object."""
    if isinstance(usage, dict):
        for name in names:
            value = usage.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TOKENS:
                return value
    return None


def read_revision(value: object) -> str | None:
    """Read a fingerprint as a short printable word, or not at all."""
    if isinstance(value, str) and value and value.isprintable():
        return value[:_MAX_REVISION_CHARS]
    return None
