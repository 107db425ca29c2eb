"""The ids that travel between Envoy, the sidecar, the replicas and the journal.

They are distinct types so that an attempt id can never be passed where an operation id is meant.
Minting needs randomness and lives in `adapters.ids`; the core only ever receives ids.
"""

from typing import NewType

OperationId = NewType("OperationId", str)
"""What the client wants once: `op_` + ULID. Shown to clients."""

ExchangeId = NewType("ExchangeId", str)
"""One HTTP request through the ingress, over all its attempts: `exg_` + ULID. Never shown to clients."""

AttemptId = NewType("AttemptId", str)
"""One try at one replica: `att_` + ULID. Sent to the replica."""

ReplicaId = NewType("ReplicaId", str)
"""A replica's configured id, unique over all pools."""

PoolName = NewType("PoolName", str)
"""The replicas that serve the same models with the same fingerprint."""

SeatId = NewType("SeatId", str)
"""One incarnation of one gateway at its store: the gateway's name, `/` and a number that the store gives out
once. For logs and the journal, never for clients."""

FencingToken = NewType("FencingToken", int)
"""Which attempt of an operation, or which owner, came later: from 1, only growing. Who holds a smaller one
acts no more."""
