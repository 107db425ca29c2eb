"""List and watch of EndpointSlices: what the Kubernetes API says, and the slices it adds up to.

A list gives all slices and a version; a watch from that version gives each change after it, one JSON
object a line. https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes

Errors come in two ways: as the status of an answer, and inside a watch that began with 200. Both hold
a `Status` object. 410 means that the version lies too far back, so the list must be had again.
"""

import json
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.discovery import Listing, ListingFailed
from envoy_ext.domain.endpoint_slices import EndpointSlice, build_listing, read_slice

LONGEST_MESSAGE: Final = 300
"""Of the API's own words: a `Status` may repeat whole objects."""

GONE: Final = 410


class BadAnswer(Exception):
    """Not what the API answers; the message says in which way."""


@dataclass(frozen=True, slots=True)
class SlicePage:
    """One page of a list. With `following` there is another one."""

    slices: tuple[EndpointSlice, ...]
    version: str
    following: str


@dataclass(frozen=True, slots=True)
class ApiStatus:
    """What the API says of a request that it did not serve."""

    code: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SlicePut:
    """A slice is there, or is another one than before."""

    slice: EndpointSlice


@dataclass(frozen=True, slots=True)
class SliceDeleted:
    """A slice is not there any more, or is not of this Service any more."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing changed up to this version."""

    version: str


WatchEvent = SlicePut | SliceDeleted | Bookmark | ApiStatus


def parse_page(body: bytes) -> SlicePage:
    """A page of a list.

    Raises:
        BadAnswer: it is no list of slices.
    """
    tree = _parse(body)
    items, meta = tree.get("items"), tree.get("metadata")
    if not isinstance(meta, dict) or not isinstance(items, list | None):
        raise BadAnswer("not a list of EndpointSlices")
    version, following = meta.get("resourceVersion"), meta.get("continue")
    if not isinstance(version, str) or not version:
        raise BadAnswer("a list without a resourceVersion")
    slices = tuple(_read(item) for item in items or ())
    return SlicePage(slices, version, following if isinstance(following, str) else "")


def parse_event(line: bytes) -> WatchEvent | None:
    """One line of a watch; None for a kind of event that is not known.

    Raises:
        BadAnswer: it is no event.
    """
    tree = _parse(line)
    kind, changed = tree.get("type"), tree.get("object")
    if not isinstance(kind, str) or not isinstance(changed, dict):
        raise BadAnswer("a line that is no watch event")
    match kind:
        case "ADDED" | "MODIFIED":
            return SlicePut(_read(changed))
        case "DELETED":
            gone = _read(changed)
            return SliceDeleted(gone.name, gone.version)
        case "BOOKMARK":
            return Bookmark(_read_version(changed))
        case "ERROR":
            return _read_status(changed)
        case _:
            return None


def parse_status(code: int, body: bytes) -> ApiStatus:
    """Why a request was not served. A proxy in between may answer with anything: then the code is all."""
    try:
        said = _read_status(_parse(body))
    except BadAnswer:
        said = ApiStatus(code, "", "")
    return ApiStatus(code, said.reason, said.message)


class SliceCache:
    """The slices of one Service at one version."""

    def __init__(self, slices: tuple[EndpointSlice, ...], version: str) -> None:
        self.version = version
        """Where the next watch goes on."""
        self._slices = {one.name: one for one in slices}

    def apply(self, event: SlicePut | SliceDeleted | Bookmark) -> bool:
        """Take in one event; False when it changed no slice."""
        match event:
            case SlicePut(put):
                self._slices[put.name] = put
                self.version = put.version or self.version
                return True
            case SliceDeleted(name, version):
                self.version = version or self.version
                return self._slices.pop(name, None) is not None
            case Bookmark(version):
                self.version = version or self.version
                return False

    def build_listing(self, port: int | str) -> Listing | ListingFailed:
        """The replicas that the slices add up to."""
        return build_listing(self._slices.values(), port)


def _parse(body: bytes) -> dict[str, object]:
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer("not JSON") from error
    if not isinstance(tree, dict):
        raise BadAnswer("not a JSON object")
    return tree


def _read(tree: object) -> EndpointSlice:
    try:
        return read_slice(tree)
    except ValueError as error:
        raise BadAnswer(str(error)) from error


def _read_version(tree: dict[str, object]) -> str:
    meta = tree.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return version if isinstance(version, str) else ""


def _read_status(tree: dict[str, object]) -> ApiStatus:
    code, reason, message = tree.get("code"), tree.get("reason"), tree.get("message")
    said = message if isinstance(message, str) else ""
    return ApiStatus(
        code if isinstance(code, int) else 0,
        reason if isinstance(reason, str) else "",
        said if len(said) <= LONGEST_MESSAGE else said[: LONGEST_MESSAGE - 1] + "…",
    )
