"""Estimates how many tokens a prompt has, to tell cheap replays from dear ones.

Four bytes of UTF-8 are taken as one token, rounded up. That is the common rule of thumb for English
(https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them: one token is about
four characters). Bytes rather than characters, because byte-level BPE starts from bytes: scripts with
longer characters come out with more tokens for each of them, which is the direction in which real
tokenizers err from the rule. An engine's own count stays the truth; this one is for limits only.

A part that is not text (an image, audio, a file) counts as 1024 tokens: between the few hundred and the
few thousand that vision models spend on an image, and not dependent on how it is encoded. Prompts
given as token ids count exactly.

Nothing here judges a request. What has another shape than the API's counts as nothing, and the engine
says what is wrong with it.
"""

import json
from typing import Final

JsonObject = dict[str, object]

BYTES_PER_TOKEN: Final = 4
TOKENS_PER_PART: Final = 1024

_TEXT_FIELDS: Final = ("text", "refusal", "thinking", "reasoning_content", "reasoning", "summary")
"""Fields of a message or part that hold text, or parts of it."""


class _Size:
    """A sum of text and parts under way."""

    __slots__ = ("text_bytes", "tokens")

    def __init__(self) -> None:
        self.text_bytes = 0
        self.tokens = 0

    def add_text(self, text: str) -> None:
        # surrogatepass: JSON can spell half a surrogate pair, which UTF-8 cannot.
        self.text_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))

    def add_json(self, value: object) -> None:
        """Add what reaches the prompt as JSON: tools and their calls."""
        if value:
            self.add_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    def add_content(self, content: object) -> None:
        """Add a string, or a list of parts in the shape of any of the APIs."""
        if isinstance(content, str):
            self.add_text(content)
        elif isinstance(content, list):
            for part in content:
                self.add_part(part)

    def add_part(self, part: object) -> None:
        """Add one part of a message, or one item of an input."""
        if isinstance(part, str):
            self.add_text(part)
            return
        if not isinstance(part, dict):
            return
        kind = part.get("type")
        if isinstance(kind, str) and kind.endswith(_OPAQUE_KINDS):
            self.tokens += TOKENS_PER_PART
            return
        self.add_content(part.get("content"))
        self.add_content(part.get("output"))
        for field in _TEXT_FIELDS:
            self.add_content(part.get(field))
        self.add_json(part.get("tool_calls"))
        self.add_json(part.get("input"))
        self.add_json(part.get("arguments"))

    def count(self) -> int:
        return self.tokens + -(-self.text_bytes // BYTES_PER_TOKEN)


_OPAQUE_KINDS: Final = ("image_url", "image", "audio_url", "audio", "video_url", "video", "file", "document")
"""How the types of parts that are not text end: `image_url`, `input_image`, `input_audio`, `file`..."""


def estimate_chat_tokens(request: JsonObject) -> int:
    """Estimate a chat request: its messages and the tools offered with them."""
    size = _Size()
    size.add_content(request.get("messages"))
    size.add_json(request.get("tools"))
    size.add_json(request.get("functions"))
    return size.count()


def estimate_messages_tokens(request: JsonObject) -> int:
    """Estimate a request of Anthropic's Messages API."""
    size = _Size()
    size.add_content(request.get("system"))
    size.add_content(request.get("messages"))
    size.add_json(request.get("tools"))
    return size.count()


def estimate_responses_tokens(request: JsonObject) -> int:
    """Estimate a request of the Responses API. What an earlier response holds is not known here."""
    size = _Size()
    size.add_content(request.get("instructions"))
    size.add_content(request.get("input"))
    size.add_json(request.get("tools"))
    return size.count()


def estimate_input_tokens(value: object) -> tuple[int, int]:
    """Estimate a bare prompt, and count how many prompts it is.

    It is a text, a list of texts, a list of token ids, or a list of such lists.
    """
    size = _Size()
    if isinstance(value, str):
        size.add_text(value)
        return size.count(), 1
    if not isinstance(value, list) or not value:
        return 0, 1
    if isinstance(value[0], int):
        return len(value), 1
    for prompt in value:
        if isinstance(prompt, list):
            size.tokens += len(prompt)
        else:
            size.add_part(prompt)
    return size.count(), len(value)
