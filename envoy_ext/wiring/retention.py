"""The journal's upkeep as part of the composition: its limits, and what is told of it.

Belongs to the composition layer, beside `app`.
"""

import logging
from typing import Final

from envoy_ext.config import Jobs, Journal
from envoy_ext.domain.retention import Excess, RetentionPolicy, Why
from envoy_ext.observability.metrics import Metrics
from envoy_ext.ports import StoreSize

log = logging.getLogger("envoy_ext")

MAX_OPERATIONS: Final = 1_000_000
"""Some 2.4 GB in SQLite without kept answers."""
MAX_OPERATIONS_IN_MEMORY: Final = 50_000
"""Some 200 MB of the sidecar."""
MAX_BYTES: Final = 4 << 30
"""Of a disk that other things are on too."""
MAX_BYTES_IN_MEMORY: Final = 256 << 20


def build_retention_policy(journal: Journal, jobs: Jobs | None = None) -> RetentionPolicy:
    """`journal`'s limits, and that of jobs' results; a store has its own where the file names none."""
    in_memory = journal.store == "memory"
    operations = MAX_OPERATIONS_IN_MEMORY if in_memory else MAX_OPERATIONS
    size = MAX_BYTES_IN_MEMORY if in_memory else MAX_BYTES
    return RetentionPolicy(
        journal.retention,
        journal.max_operations or operations,
        journal.max_bytes or size,
        None if jobs is None else jobs.keep_results,
    )


class RetentionNotes:
    """`services.retention.Listener`: counts, and says once that there is too much."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._over: Why | None = None

    def note_forgotten(self, why: Why, operations: int) -> None:
        """So many have gone."""
        self._metrics.journal.note_forgotten(why, operations)

    def note_size(self, size: StoreSize, excess: Excess | None) -> None:
        """How much there is. A line when it becomes too much, and when it is no more."""
        over = None if excess is None else excess.why
        self._metrics.journal.note_size(size, over is not None)
        if over is not self._over:
            told = {"operations": size.operations, "bytes": size.bytes}
            if over is None:
                log.info("journal_within_limits", extra=told)
            else:
                log.warning("journal_over_limit", extra={"limit": f"journal.max_{over}", **told})
            self._over = over
