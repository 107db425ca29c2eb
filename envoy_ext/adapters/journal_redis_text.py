"""Text as bytes and back, for keys and values at Redis."""

import hashlib


def encode(text: str) -> bytes:
    """Any text at all, also with bytes that are not UTF-8, which Python keeps as lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def decode(text: bytes) -> str:
    """The text that was encoded."""
    return text.decode("utf-8", "surrogatepass")


def build_digest(*parts: str) -> bytes:
    """One short name for several texts, of which clients choose the length."""
    encoded = [encode(part) for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in encoded)).digest()
