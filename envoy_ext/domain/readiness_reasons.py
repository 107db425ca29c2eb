"""Why a replica gets no work, or less: closed words for programs, a sentence for people.

The kind of a reason decides three things: which state it puts a replica in, whether the replica may
still serve when no other can, and in which order those are tried.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ReadinessReason(StrEnum):
    """One word for each thing that can be held against a replica."""

    REMOVED = "removed"
    DRAINING = "draining"
    POD_NOT_READY = "pod_not_ready"
    LOADING = "loading"
    CONTROL_CALL = "control_call"
    REFUSED = "refused"
    ENGINE_DEAD = "engine_dead"
    SLEEPING = "sleeping"
    HANG = "hang"
    GPU_XID = "gpu_xid"
    GPU_ECC = "gpu_ecc"
    GPU_ROW_REMAP = "gpu_row_remap"
    GPU_TEMPERATURE = "gpu_temperature"
    DEPENDENCY = "dependency"
    UNREACHABLE = "unreachable"
    JUST_FAILED = "just_failed"
    CIRCUIT_OPEN = "circuit_open"
    KV_CACHE = "kv_cache"
    WAITING = "waiting"
    ALLOCATION_FAILURES = "allocation_failures"
    METRICS_STALE = "metrics_stale"
    METRICS_UNSUPPORTED = "metrics_unsupported"
    CONTROL_CALL_DECLINED = "control_call_declined"
    CIRCUIT_OVERRULED = "circuit_overruled"
    GPU_XID_APPLICATION = "gpu_xid_application"
    GPU_ROW_REMAP_PENDING = "gpu_row_remap_pending"


class ReasonKind(StrEnum):
    """What a reason means for its replica."""

    ORDER = "order"
    """Somebody said so: an operator or the orchestrator. Nothing overrides it."""
    ABSENCE = "absence"
    """By its own word, or its host's, nothing there can answer."""
    FAULT = "fault"
    """It is there, and something is wrong with it."""
    DOUBT = "doubt"
    """It did not answer us; that says as much about the way there as about the replica."""
    CIRCUIT = "circuit"
    """Our own requests fail there: it gets none but trials, and stands in for nobody."""
    LOAD = "load"
    """It works, and is full. Load never makes a replica dead."""
    REMARK = "remark"
    """Worth knowing; changes nothing by itself."""


_R, _K = ReadinessReason, ReasonKind
KINDS: Final[dict[ReadinessReason, ReasonKind]] = {
    _R.REMOVED: _K.ORDER,
    _R.DRAINING: _K.ORDER,
    _R.POD_NOT_READY: _K.ORDER,
    _R.LOADING: _K.ABSENCE,
    _R.CONTROL_CALL: _K.ABSENCE,
    _R.REFUSED: _K.ABSENCE,
    _R.ENGINE_DEAD: _K.ABSENCE,
    _R.SLEEPING: _K.ABSENCE,
    _R.HANG: _K.FAULT,
    _R.GPU_XID: _K.FAULT,
    _R.GPU_ECC: _K.FAULT,
    _R.GPU_ROW_REMAP: _K.FAULT,
    _R.GPU_TEMPERATURE: _K.FAULT,
    _R.DEPENDENCY: _K.FAULT,
    _R.UNREACHABLE: _K.DOUBT,
    _R.JUST_FAILED: _K.DOUBT,
    _R.CIRCUIT_OPEN: _K.CIRCUIT,
    _R.KV_CACHE: _K.LOAD,
    _R.WAITING: _K.LOAD,
    _R.ALLOCATION_FAILURES: _K.LOAD,
    _R.METRICS_STALE: _K.REMARK,
    _R.METRICS_UNSUPPORTED: _K.REMARK,
    _R.CONTROL_CALL_DECLINED: _K.REMARK,
    _R.CIRCUIT_OVERRULED: _K.REMARK,
    _R.GPU_XID_APPLICATION: _K.REMARK,
    _R.GPU_ROW_REMAP_PENDING: _K.REMARK,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason as it stands, and the sentence for people."""

    reason: ReadinessReason
    text: str

    @property
    def kind(self) -> ReasonKind:
        return KINDS[self.reason]


UNFIT_KINDS: Final = frozenset({ReasonKind.ABSENCE, ReasonKind.FAULT, ReasonKind.DOUBT})
"""Kinds that make a proven replica unready."""
