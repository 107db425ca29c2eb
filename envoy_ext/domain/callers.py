"""Callers: who a request is from, by the credential that it shows, and what that one may ask for.

A credential is an API key, of which only the SHA-256 is known here, or a name that a trusted proxy or filter
in front has set. What a caller may do hangs on its name, and so does all that is kept for it: keys come
and go, and the name stays.

Keys are random and long (`envoy-ext callers new`: 256 bits), so a slow hash would protect nothing: what it
makes dear is guessing, and nobody guesses these. It would cost each request what it is to cost a thief.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from envoy_ext.domain.ids import PoolName

Network = IPv4Network | IPv6Network

SHORTEST_KEY: Final = 20
"""Whatever is shorter matches nothing, whoever has put its hash in the file: it could be guessed."""
LONGEST_KEY: Final = 512

INVALID_KEY: Final = "invalid_api_key"
"""The contract's error code for a request whose caller is not known."""
DENIED: Final = "permission_denied"
"""The contract's error code for a caller that is known and may not do this."""
CHALLENGE: Final = ("www-authenticate", "Bearer")
"""RFC 9110, 11.6.1: a 401 says how to authenticate."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a caller may ask for."""

    models: frozenset[str] | None = None
    """None, here and in `pools`: all. With both, either is enough."""
    pools: frozenset[PoolName] | None = None
    """Every model in them, and what names no model."""
    classes: tuple[str, ...] = ()
    """Of traffic; (): all. The first is that of a request that names none."""
    data_classes: tuple[str, ...] = ()

    @property
    def limited(self) -> bool:
        """Whether there may be a model that this caller may not use."""
        return self.models is not None or self.pools is not None

    def may_use(self, pool: PoolName, model: str | None) -> bool:
        """Whether it may ask this pool for that model; None is the engine's own."""
        if not self.limited or (self.pools is not None and pool in self.pools):
            return True
        return model is not None and self.models is not None and model in self.models


ALL_RIGHTS: Final = Rights()


@dataclass(frozen=True, slots=True)
class CallerEntry:
    """One caller as the file has it."""

    name: str
    digests: tuple[bytes, ...] = ()
    """SHA-256 of its keys; () for one that a trusted header alone can name."""
    rights: Rights = ALL_RIGHTS
    expires_at: float | None = None
    """Unix time from which on it is let in no more."""
    disabled: bool = False


class CallerBook:
    """All callers of a file; immutable.

    A key is looked up by a keyed hash of its digest: how long that takes says nothing of what the digests
    in the file are, and does not grow with their number.
    """

    def __init__(self, entries: Sequence[CallerEntry], blind: bytes) -> None:
        """`blind` is random, and known to nobody outside this process."""
        self._blind = blind
        self._by_name = {one.name: one for one in entries}
        self._by_id = {KnownCaller(one.name).id: one for one in entries}
        self._by_mark = {self._mark(digest): (digest, one) for one in entries for digest in one.digests}

    @property
    def entries(self) -> tuple[CallerEntry, ...]:
        """In the order of the file."""
        return tuple(self._by_name.values())

    def find_name(self, name: str) -> CallerEntry | None:
        """The caller of this name."""
        return self._by_name.get(name)

    def find_id(self, caller_id: str) -> CallerEntry | None:
        """The caller that the journal knows by this."""
        return self._by_id.get(caller_id)

    def find_key(self, key: str) -> CallerEntry | None:
        """The caller of this key."""
        if not SHORTEST_KEY <= len(key) <= LONGEST_KEY or not is_plain(key):
            return None
        digest = sha256(key.encode("ascii")).digest()
        known, entry = self._by_mark.get(self._mark(digest), (bytes(len(digest)), None))
        return entry if hmac.compare_digest(known, digest) else None

    def _mark(self, digest: bytes) -> bytes:
        return hmac.digest(self._blind, digest, "sha256")


@dataclass(frozen=True, slots=True)
class CallerRules:
    """`callers`, as it is at one moment."""

    book: CallerBook | None = None
    """None: there is no file, and whoever the trusted header names may do everything."""
    checks_keys: bool = False
    trusted_header: str | None = None
    trusted_from: tuple[Network, ...] = ()
    """Whose word the header is: the other ends of connections."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request shows of its caller. A header that stands twice has its values joined by commas."""

    authorization: str = ""
    others: tuple[str, ...] = ()
    """`x-api-key` and `api-key`."""
    name: str | None = None
    """From the trusted header, whoever has set it."""
    peer: str = ""
    """The address of the connection's other end, with or without its port."""


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """A caller that was let in."""

    name: str
    rights: Rights = ALL_RIGHTS

    @property
    def id(self) -> str:
        """What the journal and the queue know it by: stays the same when its keys change."""
        return sha256(b"caller\0" + self.name.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class UnknownCaller:
    """Nobody who is let in."""

    message: str
    """For the client: what is missing. Nothing that it sent."""


_BLANKS: Final = " \t"
"""What may stand around a header's value (RFC 9110, 5.6.3); other white space is part of it."""
_NO_KEY: Final = "An API key is missing: send it as Authorization: Bearer, as x-api-key or as api-key."
_NO_NAME: Final = "Requests are taken here from the proxy that names their caller, and from nobody else."
_UNKNOWN_NAME: Final = "The caller that the proxy in front has named is not known here."
_UNKNOWN_KEY: Final = "The API key is not known here."
_GONE: Final = "The caller that sent this is let in no more."
_EXPIRED: Final = "The right of this caller has expired."
_NO_BEARER: Final = "Authorization: must be Bearer and an API key."
_SEVERAL: Final = "More than one API key was sent, and they differ: send one."


def decide_caller(shown: Credentials, rules: CallerRules, wall: float) -> KnownCaller | UnknownCaller:
    """Who it is. Where the trusted header is, it alone counts: whoever set it has looked at the rest."""
    if rules.trusted_header is not None and shown.name is not None and _is_trusted(shown.peer, rules):
        if rules.book is None:
            return KnownCaller(shown.name) if is_name(shown.name) else UnknownCaller(_UNKNOWN_NAME)
        return _let_in(rules.book.find_name(shown.name), _UNKNOWN_NAME, wall)
    if not rules.checks_keys or rules.book is None:
        return UnknownCaller(_NO_NAME)
    keys = _read_keys(shown)
    if isinstance(keys, UnknownCaller):
        return keys
    return _let_in(rules.book.find_key(keys), _UNKNOWN_KEY, wall)


def decide_again(caller_id: str, rules: CallerRules, wall: float) -> KnownCaller | UnknownCaller:
    """Whether a caller that was let in, and is known by its id, still would be. Without a file all are."""
    if rules.book is None:
        return KnownCaller(caller_id)
    return _let_in(rules.book.find_id(caller_id), _GONE, wall)


def _let_in(entry: CallerEntry | None, unknown: str, wall: float) -> KnownCaller | UnknownCaller:
    if entry is None or entry.disabled:
        return UnknownCaller(unknown)
    if entry.expires_at is not None and wall >= entry.expires_at:
        return UnknownCaller(_EXPIRED)
    return KnownCaller(entry.name, entry.rights)


def _read_keys(shown: Credentials) -> str | UnknownCaller:
    """The one key that was sent."""
    keys: list[str] = []
    for given in _split((shown.authorization,)):
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer":
            return UnknownCaller(_NO_BEARER)
        if key.strip(_BLANKS):
            keys.append(key.strip(_BLANKS))
    keys += _split(shown.others)
    if not keys:
        return UnknownCaller(_NO_KEY)
    return keys[0] if len(set(keys)) == 1 else UnknownCaller(_SEVERAL)


def _split(values: Iterable[str]) -> list[str]:
    """Of headers that may stand twice. No key has a comma in it (RFC 6750, 2.1)."""
    pieces = (one.strip(_BLANKS) for value in values for one in value.split(","))
    return [one for one in pieces if one]


def _is_trusted(peer: str, rules: CallerRules) -> bool:
    address = read_address(peer)
    return address is not None and any(address in network for network in rules.trusted_from)


def read_address(peer: str) -> object:
    """The IP address in `ip`, `ip:port` or `[ip]:port`; None where there is none, as on a Unix socket."""
    host = peer.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def is_plain(text: str) -> bool:
    """Whether all of it is printable ASCII, and none of it blank or a comma."""
    return text.isascii() and text.isprintable() and " " not in text and "," not in text


LONGEST_NAME: Final = 128


def is_name(text: str) -> bool:
    """Whether a caller may be called so."""
    return 0 < len(text) <= LONGEST_NAME and is_plain(text)
