"""What the fleet and the discovery streams tell, as log lines and metrics.

Belongs to the composition layer, beside `app`.
"""

import logging

from envoy_ext.domain.circuit import CUT
from envoy_ext.domain.fleet_events import Change, CircuitTurned, FingerprintContradicted, ReplicaChanged
from envoy_ext.domain.slots import CancelOver
from envoy_ext.observability.metrics import Metrics
from envoy_ext.xds.session import Nacked, Note, NotServed, Pushed

log = logging.getLogger("envoy_ext")


def count_xds(note: Note, metrics: Metrics) -> None:
    """An answer to an Envoy, or its refusal."""
    match note:
        case Pushed():
            metrics.note_push(note.kind)
        case Nacked():
            metrics.note_nack(note.kind)
            log.error("xds_refused", extra={"kind": note.kind.value, "detail": note.detail})
        case NotServed():
            log.warning("xds_not_served", extra={"type_url": note.type_url, "detail": note.detail})


def note_change(change: Change, metrics: Metrics) -> None:
    """One line for each change of a replica's state: the word, and why. And for what contradicts the file.

    Cancels are counted only.
    """
    if isinstance(change, CancelOver):
        metrics.fleet.note_cancel(change)
    if isinstance(change, CircuitTurned):
        metrics.fleet.note_circuit(change)
        opened = change.after in CUT and change.before not in CUT
        log.log(
            logging.WARNING if opened else logging.INFO,
            "circuit_changed",
            extra={
                "replica": change.replica,
                "pool": change.pool,
                "before": change.before.value,
                "after": change.after.value,
                "failure": None if change.kind is None else change.kind.value,
                "why": change.why,
            },
        )
    if isinstance(change, FingerprintContradicted):
        log.warning(
            "fingerprint_contradicted",
            extra={
                "replica": change.replica,
                "pool": change.pool,
                "why": "; ".join(one.describe_contradiction() for one in change.differences),
            },
        )
    if isinstance(change, ReplicaChanged):
        log.info(
            "replica_changed",
            extra={
                "replica": change.replica,
                "pool": change.pool,
                "before": change.before.value,
                "after": change.after.value,
                "reasons": ",".join(finding.reason for finding in change.findings),
                "why": "; ".join(finding.text for finding in change.findings),
            },
        )
