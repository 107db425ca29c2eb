"""Minting of ids: a prefix and a ULID, so that ids sort by the time they were minted.

The 80 random bits come from `os.urandom` for each id. python-ulid 4 would by default count up
from the last id of the same millisecond, which lets the reader of one id guess its neighbours;
so the bytes are made here and python-ulid only encodes them.
"""

import os
import secrets
import time

from ulid import ULID

from envoy_ext.domain.ids import AttemptId, ExchangeId, OperationId


def mint_operation_id() -> OperationId:
    """An id for one operation: `op_` + ULID."""
    return OperationId(f"op_{_mint_ulid()}")


def mint_exchange_id() -> ExchangeId:
    """An id for one exchange: `exg_` + ULID + 128 random bits in hex.

    It is a capability: who knows it can join an attempt to the exchange. It must be unguessable
    even for someone who has seen others, and is never shown to clients.
    """
    return ExchangeId(f"exg_{_mint_ulid()}{secrets.token_hex(16)}")


def mint_attempt_id() -> AttemptId:
    """An id for one attempt: `att_` + ULID."""
    return AttemptId(f"att_{_mint_ulid()}")


def _mint_ulid() -> ULID:
    milliseconds = time.time_ns() // 1_000_000
    return ULID.from_bytes(milliseconds.to_bytes(6, "big") + os.urandom(10))
