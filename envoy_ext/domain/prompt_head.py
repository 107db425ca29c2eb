"""The beginning of a prompt as bytes that are equal for equal beginnings, whatever JSON it came in.

Engines reuse what they have computed of a prompt's beginning. Two requests that share one must give the
same first bytes here: keys in one order, no blanks, a conversation's next turn behind the turns before.
It is no prompt and is not kept; it is hashed (`prefix_memory`) and dropped.
"""

from typing import Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.prompt_size import JsonObject

MAX_HEAD_BYTES: Final = 128 * 1024
"""32,000 tokens or so: longer prompts are not replayed by default."""
MAX_PIECES: Final = 4096
"""Texts, names and marks between them: about 600 messages, and a millisecond or two."""
MAX_KEYS: Final = 256
"""An object with more is no message; sorting a million names would hold the loop."""

_PARTS: Final[dict[ApiFamily, tuple[str, ...]]] = {
    # In the order in which chat templates place them: what is offered first, then who says what.
    ApiFamily.CHAT: ("tools", "functions", "messages"),
    ApiFamily.COMPLETIONS: ("prompt",),
    ApiFamily.RESPONSES: ("tools", "instructions", "input"),
    ApiFamily.MESSAGES: ("tools", "system", "messages"),
    ApiFamily.TGI: ("inputs", "text", "input_ids"),
}
_NO_PROMPT: Final = frozenset({"cache_control"})
"""Marks that move from turn to turn and are no part of what is computed."""


def read_prompt_head(family: ApiFamily, request: JsonObject, limit: int = MAX_HEAD_BYTES) -> bytes:
    """The first `limit` bytes at most; none for requests whose computation nobody caches by its beginning."""
    head = _Head(limit)
    for name in _PARTS.get(family, ()):
        value = request.get(name)
        if value:
            head.add(f"\n{name}\n")
            head.add_value(value)
    return bytes(head.written)


class _Head:
    """Collects until it is full; what does not fit any more is not even encoded."""

    __slots__ = ("_limit", "_pieces", "written")

    def __init__(self, limit: int) -> None:
        self.written = bytearray()
        self._limit = limit
        self._pieces = 0

    @property
    def full(self) -> bool:
        return len(self.written) >= self._limit or self._pieces >= MAX_PIECES

    def add_value(self, value: object) -> None:
        if self.full:
            return
        match value:
            case str():
                self.add(value)
            case [int(), *_]:  # token ids; a call for each would be felt
                self.add(" ".join(map(str, value[: self._limit // 4])))
            case list():
                for item in value:
                    self.add("\n")
                    self.add_value(item)
                    if self.full:
                        return
            case dict() if len(value) <= MAX_KEYS:
                for name in sorted(value):
                    if value[name] is not None and name not in _NO_PROMPT:
                        self.add(f"\n{name}: ")
                        self.add_value(value[name])
            case dict():
                self.add("{}")
            case _:
                self.add(str(value))

    def add(self, text: str) -> None:
        room = 0 if self.full else self._limit - len(self.written)
        self._pieces += 1
        if room:
            # surrogatepass: JSON can spell half a surrogate pair, which UTF-8 cannot.
            self.written += text[:room].encode("utf-8", "surrogatepass")[:room]
