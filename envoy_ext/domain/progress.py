"""Does a replica with work in hand get anywhere? What a hang is told by.

Work in hand is any of: requests running, requests waiting (a locked scheduler shows nothing running
and a deep queue), streams of our own. A movement is a change of the engine's live counter, of the
share of its KV cache in use, of the number running or of the requests finished, or a byte on one of
our own streams. No single one of them moves in every phase of every engine:

* vLLM's token counters stand still in a chunked prefill while its KV share moves;
* SGLang's token totals move when a request ends; builds without the live counter show `token_usage`;
* llama.cpp's `n_decode_total` and TGI's batch counters move in both phases.

The queue's length is no movement: it grows by what arrives, whatever the engine does.
"""

import math
from dataclasses import dataclass

from envoy_ext.domain.sample import Sample
from envoy_ext.domain.signals import read_known


@dataclass(slots=True)
class ProgressWatch:
    """Remembers when there was work, and when something moved; changed only by its gate."""

    moved_at: float
    """When something last moved."""
    computed_at: float = -math.inf
    """When its live counter was last seen to have risen: a model is there, and computes for somebody."""
    work_since: float | None = None
    """When the work in hand began, None while there is none."""
    inflight: int = 0
    _excused_at: float = -math.inf
    _engine_busy: bool = False
    _seen: tuple[float | None, ...] = (None, None, None, None)

    @property
    def working(self) -> bool:
        return self.work_since is not None

    @property
    def silent_since(self) -> float | None:
        """Since when there is work and no movement; None without work."""
        return None if self.work_since is None else max(self.moved_at, self.work_since, self._excused_at)

    def note_sample(self, sample: Sample) -> None:
        """Compare a look with the ones before; a family missing from a page says nothing."""
        looks = (sample.progress, sample.kv_cache_usage, sample.running, sample.requests_total)
        seen = tuple(read_known(look) for look in looks)
        pairs = tuple(zip(self._seen, seen, strict=True))
        if any(old is not None and new is not None and old != new for old, new in pairs):
            self.moved_at = sample.at
        before, after = pairs[0]
        # Shares of gauges may be part of the counter; a whole one more is something computed.
        if before is not None and after is not None and after >= before + 1.0:
            self.computed_at = sample.at
        self._seen = tuple(old if new is None else new for old, new in pairs)
        running, waiting = read_known(sample.running), read_known(sample.waiting)
        if running is not None or waiting is not None:
            self._engine_busy = bool(running or waiting)
        self._set_work(sample.at)

    def note_movement(self, at: float) -> None:
        """Bytes came on one of our own streams, or an answer was whole."""
        self.moved_at = max(self.moved_at, at)

    def note_inflight(self, inflight: int, at: float) -> None:
        """So many streams of our own are open there."""
        self.inflight = inflight
        self._set_work(at)

    def forget_engine(self, at: float) -> None:
        """Another process is there: what the last one showed is no measure."""
        self._seen = (None, None, None, None)
        self._engine_busy = False
        self.moved_at = at
        self.computed_at = -math.inf
        self.work_since = None
        self._set_work(at)

    def excuse(self, seconds: float, at: float) -> None:
        """Nobody looked for so long: that time is not silence."""
        since = self.silent_since
        if since is not None:
            self._excused_at = min(at, since + seconds)

    def _set_work(self, at: float) -> None:
        if not (self._engine_busy or self.inflight):
            self.work_since = None
        elif self.work_since is None:
            self.work_since = at
