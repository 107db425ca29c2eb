"""What an attempt's headers say of its lease."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain import names
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId

MAX_TTL_S: Final = 3600.0
_MAX_ID_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class LeaseOffer:
    """A lease that a gateway offers with a request; it grants nothing yet."""

    operation_id: OperationId
    attempt_id: AttemptId
    token: FencingToken
    ttl_s: float


class BadOffer(ValueError):
    """The headers name an attempt, and are not those of a gateway; the message says which one."""


def read_offer(headers: Iterable[tuple[bytes, bytes]]) -> LeaseOffer | None:
    """The offer of a request; None for a request that no gateway of ours sent.

    Raises:
        BadOffer: a header of the offer is missing, stands twice, or cannot be read.
    """
    found: dict[str, str] = {}
    for key, value in headers:
        name = key.decode("latin-1").lower()
        if name in (names.ATTEMPT, names.OPERATION, names.LEASE, names.LEASE_TTL):
            if name in found:
                raise BadOffer(f"{name}: stands twice")
            found[name] = value.decode("latin-1").strip()
    if names.LEASE not in found:
        return None
    return LeaseOffer(
        operation_id=OperationId(_read_id(found, names.OPERATION)),
        attempt_id=AttemptId(_read_id(found, names.ATTEMPT)),
        token=_read_token(found[names.LEASE]),
        ttl_s=_read_ttl(found.get(names.LEASE_TTL, "")),
    )


def _read_id(found: dict[str, str], name: str) -> str:
    value = found.get(name, "")
    if not value or len(value) > _MAX_ID_CHARS or not value.replace("_", "").isalnum():
        raise BadOffer(f"{name}: is missing or is no id")
    return value


def _read_token(value: str) -> FencingToken:
    if not (value.isascii() and value.isdigit() and len(value) <= 18) or int(value) < 1:
        raise BadOffer(f"{names.LEASE}: must be a whole number from 1")
    return FencingToken(int(value))


def _read_ttl(value: str) -> float:
    try:
        ttl_s = float(value)
    except ValueError:
        ttl_s = math.nan
    if not 0 < ttl_s <= MAX_TTL_S:
        raise BadOffer(f"{names.LEASE_TTL}: must be seconds, above 0 and up to {MAX_TTL_S:.0f}")
    return ttl_s
