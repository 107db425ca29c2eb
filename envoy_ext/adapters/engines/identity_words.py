"""How what engines tell of themselves becomes words that can be compared, shown and logged.

A page is somebody else's text: only named fields are read from it, long values become hashes, and what
is not of the expected form is not known.
"""

import json
import math
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, TypeAlias

Pages: TypeAlias = Mapping[str, bytes]
"""What a replica answered, by path; a page that could not be read is not there."""
JsonObject: TypeAlias = Mapping[str, object]

MAX_WORD_CHARS: Final = 200
"""As long as the configuration's own words may be."""
_MAX_PATH_CHARS: Final = 4096
"""As long as a path may be on Linux; the search below takes time by the square of the length."""
_SNAPSHOT: Final = re.compile(
    r"models--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{7,64})/?(?P<file>[^/]*)$"
)
"""Where Hugging Face's cache keeps a revision (huggingface_hub, "Understand caching")."""


def read_object(pages: Pages, path: str) -> JsonObject:
    """The JSON object of a page; empty when there is none."""
    value = _read_json(pages, path)
    return value if isinstance(value, dict) else {}


def read_objects(pages: Pages, path: str) -> list[JsonObject] | None:
    """The JSON list of objects of a page, None when there is none."""
    value = _read_json(pages, path)
    if not isinstance(value, list):
        return None
    return [one for one in value if isinstance(one, dict)]


def read_child(parent: JsonObject, *names: str) -> JsonObject:
    """The object at the end of a chain of names; empty when there is none."""
    for name in names:
        child = parent.get(name)
        parent = child if isinstance(child, dict) else {}
    return parent


def read_cards(pages: Pages, path: str = "/v1/models") -> list[JsonObject] | None:
    """The entries of an OpenAI list of models, None when it could not be read."""
    data = read_object(pages, path).get("data")
    if not isinstance(data, list):
        return None
    return [card for card in data if isinstance(card, dict)]


def read_word(value: object) -> str | None:
    """A short text or number as a word; anything else, and the empty text, is not known."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    word = " ".join(str(value).split())
    if not word or word.lower() in ("none", "null"):
        return None
    if len(word) > MAX_WORD_CHARS or not word.isprintable():
        return hash_text(word)
    return word


def read_size(value: object) -> str | None:
    """A whole number above 0 as a word."""
    return read_word(value) if type(value) is int and value > 0 else None


def read_factor(value: object) -> float | None:
    """A finite number; JSON has no bound on its length, and a float has."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def hash_text(value: object) -> str | None:
    """The hash of a text that is too long to keep, or nobody's business to show."""
    if not isinstance(value, str) or not value:
        return None
    return "sha256:" + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_model(path: object) -> tuple[str | None, str | None]:
    """The name and the revision in a model's path or hub name.

    The name is the last part: the same weights lie under other directories on other nodes, and are
    fetched by one replica and mounted by another. A revision shows only in the hub's cache.
    """
    if not isinstance(path, str):
        return None, None
    if len(path) > _MAX_PATH_CHARS:
        return hash_text(path), None
    path = path.replace("\\", "/").rstrip("/")
    snapshot = _SNAPSHOT.search(path)
    if snapshot is not None:
        name = snapshot["file"] or snapshot["name"].rpartition("--")[2]
        return read_word(name), snapshot["revision"]
    return read_word(path.rpartition("/")[2]), None


def _read_json(pages: Pages, path: str) -> object:
    try:
        return json.loads(pages.get(path, b"null"))
    except (ValueError, RecursionError):
        return None
