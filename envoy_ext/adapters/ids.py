"""Minting of ids: a prefix and a ULID, so that ids sort by the time they were minted.

A ULID is 48 bits of milliseconds and 80 random ones in Crockford's base 32, highest first
(https://github.com/ulid/spec). The random bits come from `os.urandom` for each id: the specification lets a
generator count up from the last id of the same millisecond, from which the reader of one id can guess its
neighbours.
"""

import os
import time
from typing import Final

from envoy_ext.domain.ids import AttemptId, ExchangeId, OperationId

_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(high + low for high in _DIGITS for low in _DIGITS)
"""Two digits for each ten bits."""


def mint_operation_id() -> OperationId:
    """An id for one operation: `op_` + ULID."""
    return OperationId("op_" + _build_ulid(os.urandom(10)))


def mint_exchange_id() -> ExchangeId:
    """An id for one exchange: `exg_` + ULID + 128 random bits in hex.

    It is a capability: who knows it can join an attempt to the exchange. It must be unguessable
    even for someone who has seen others, and is never shown to clients.
    """
    drawn = os.urandom(26)
    return ExchangeId("exg_" + _build_ulid(drawn[:10]) + drawn[10:].hex())


def mint_attempt_id() -> AttemptId:
    """An id for one attempt: `att_` + ULID."""
    return AttemptId("att_" + _build_ulid(os.urandom(10)))


def _build_ulid(drawn: bytes) -> str:
    """Of this millisecond; `drawn` are its 80 random bits."""
    pairs, when = _PAIRS, time.time_ns() // 1_000_000
    high, low = int.from_bytes(drawn[:5], "big"), int.from_bytes(drawn[5:], "big")
    return (
        f"{pairs[when >> 40]}{pairs[when >> 30 & 1023]}{pairs[when >> 20 & 1023]}{pairs[when >> 10 & 1023]}"
        f"{pairs[when & 1023]}{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}"
        f"{pairs[high & 1023]}{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}"
        f"{pairs[low & 1023]}"
    )
