"""Recognises events that differ from one that was read in nothing but a piece of text.

An engine writes nearly all events of one answer alike: the same object around another word. Once one of them
has been read as JSON, another one with the same bytes before and behind the word says the same, and parsing
it again would tell nothing new. What stands in the word's place has to be a JSON string that is not empty
(RFC 8259, section 7), which holds no quote, so that it can end neither the string nor the event.

Which bytes are the word is a guess by the names that APIs give to text. It is checked before it is used: with
another word in its place the event must still parse, and say the same.
"""

import re
from collections.abc import Callable
from typing import Final

from envoy_ext.domain.deltas import EventFacts
from envoy_ext.domain.deltas.facts import NOTHING

_TEXT: Final = rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))++'
"""Possessive: what does not match is not tried in another way."""
_NAMES: Final = rb"content|reasoning_content|reasoning|refusal|text|delta|thinking|partial_json|arguments"
_SLOT: Final = re.compile(rb'"(?:' + _NAMES + rb')"[ ]?:[ ]?"(' + _TEXT + rb')"')
"""The fields whose text no reader looks into; whether there is any is all that counts."""
_match_text: Final = re.compile(_TEXT).match
_PROBE: Final = b"Qz"
"""Neither a word of JSON's own nor a number: outside a string it would not parse."""
_MAX_FRAME_BYTES: Final = 2048
"""Kept of one event, for each stream. A longer frame around a word is rare, and is read each time."""
_RARELY: Final = 64
"""So many events pass between two tries where no two are alike."""

Reread = Callable[[bytes], EventFacts | None]
"""What one event says, by its bytes; None when they are not one whole event."""


class AlikeEvents:
    """The frame around the word, of one stream. Learns by itself, and gives up where it does not pay."""

    __slots__ = ("_hits", "_pause", "_wait", "facts", "head", "tail")

    def __init__(self) -> None:
        self.head = b""
        """What stands before the word, with its opening quote; b"" while nothing is known."""
        self.tail = b""
        self.facts = NOTHING
        """What each such event says."""
        self._hits = 0
        self._wait = 1
        self._pause = 1

    def count(self, data: bytes) -> int:
        """How many such events these bytes are, as a whole; 0 when there is anything else among them."""
        head, tail, at, count = self.head, self.tail, 0, 0
        skip, size = len(head), len(data)
        while data.startswith(head, at):
            text = _match_text(data, at + skip)
            if text is None:
                return 0
            at = text.end()
            if not data.startswith(tail, at):
                return 0
            at += len(tail)
            count += 1
            if at == size:
                self._hits += count
                return count
        return 0

    def learn(self, event: bytes, facts: EventFacts, reread: Reread) -> None:
        """An event that was read, from its first byte to its last, and was not recognised."""
        self._wait -= 1
        if self._wait > 0:
            return
        if self.head and self._hits < 2:
            self._pause = min(2 * self._pause, _RARELY)
        else:
            self._pause = 1
        self.head, self._hits, self._wait = b"", 0, self._pause
        slot = _SLOT.search(event)
        if slot is None or len(event) > _MAX_FRAME_BYTES + slot.end(1) - slot.start(1):
            self._wait = _RARELY
            return
        head, tail = event[: slot.start(1)], event[slot.end(1) :]
        if reread(head + _PROBE + tail) == facts:
            self.head, self.tail, self.facts = head, tail, facts
