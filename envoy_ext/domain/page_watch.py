"""What a replica's pages say: the last one, how old it is, and the level of each signal on it."""

from collections.abc import Iterator

from envoy_ext.domain.gpu_health import judge_gpus, list_remarks
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.readiness_reasons import Finding, ReadinessReason
from envoy_ext.domain.replica_status import KnownLoad
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.domain.signals import Band, LastKnown, Level, read_flag, read_known

Judgement = tuple[ReadinessReason, Level, str]


class PageWatch:
    """The pages of one replica; changed only by its gate.

    A signal that a page lacks keeps its last value until that is stale; then it is not known.
    """

    def __init__(self, policy: ReadinessPolicy, seen_at: float) -> None:
        self._policy = policy
        self.forget(seen_at)

    def forget(self, now: float) -> None:
        """Another process is there: its pages start here."""
        self.sample: Sample | None = None
        self._seen_at = now
        self._failure: ScrapeFailure | None = None
        self._allocations: float | None = None
        self._running = LastKnown()
        self._waiting = LastKnown()
        self._kv_cache = LastKnown()
        self._max_running = LastKnown()

    @property
    def stale_at(self) -> float:
        return self._seen_at + self._policy.stale_s

    def is_next(self, sample: Sample) -> bool:
        """Whether a page is not older than the last one."""
        return self.sample is None or sample.at >= self.sample.at

    def is_fresh(self, now: float) -> bool:
        """Whether there is a page, and it is recent enough to say anything."""
        return self.sample is not None and now < self.stale_at

    def note(self, sample: Sample) -> Iterator[Judgement]:
        """Take in a page and yield what each of its signals says."""
        self.sample, self._seen_at, self._failure = sample, sample.at, None
        self._running.note(sample.running, sample.at)
        self._waiting.note(sample.waiting, sample.at)
        self._kv_cache.note(sample.kv_cache_usage, sample.at)
        self._max_running.note(sample.max_running, sample.at)
        yield from self._judge_load(sample)
        yield ReadinessReason.SLEEPING, read_flag(sample.sleeping), "the engine sleeps until it is woken"
        for judgement in judge_gpus(sample.gpus, self._policy.gpu_temperature):
            yield judgement.reason, judgement.level, judgement.text

    def note_failure(self, failure: ScrapeFailure) -> None:
        """A look gave no page."""
        self._failure = failure

    def shift(self, seconds: float, now: float) -> None:
        """Nobody looked for so long: the page did not age through the replica's doing."""
        self._seen_at = min(now, self._seen_at + seconds)
        for known in (self._running, self._waiting, self._kv_cache, self._max_running):
            known.shift(seconds, now)

    def read_load(self, now: float) -> KnownLoad:
        """The load signals that are recent enough."""
        stale_s = self._policy.stale_s
        return KnownLoad(
            self._running.read(now, stale_s),
            self._waiting.read(now, stale_s),
            self._kv_cache.read(now, stale_s),
            self._max_running.read(now, stale_s),
        )

    def list_ages(self) -> list[float]:
        """When what is known stops being recent enough, page and load signals each."""
        known = (self._running, self._waiting, self._kv_cache, self._max_running)
        return [self.stale_at, *(one.at + self._policy.stale_s for one in known if one.value is not None)]

    def list_remarks(self, now: float) -> list[Finding]:
        """What is worth knowing of the pages and decides nothing."""
        found = []
        failure = self._failure
        if failure is not None and failure.reason == "unsupported":
            text = "the engine gives no metrics as it is configured; its weight is a guess"
            found.append(Finding(ReadinessReason.METRICS_UNSUPPORTED, text))
        elif now >= self.stale_at:
            why = f" ({failure.reason})" if failure is not None else ""
            text = f"no metrics for {now - self._seen_at:.0f} s{why}"
            found.append(Finding(ReadinessReason.METRICS_STALE, text))
        if self.sample is not None:
            remarks = {remark.reason: remark.text for remark in list_remarks(self.sample.gpus)}
            found.extend(Finding(reason, text) for reason, text in remarks.items())
        return found

    def _judge_load(self, sample: Sample) -> Iterator[Judgement]:
        waiting, kv_cache = self._policy.waiting, self._policy.kv_cache
        text = f"{_print(sample.waiting)} requests wait in the engine ({_print_band(waiting)})"
        yield ReadinessReason.WAITING, waiting.read_level(sample.waiting), text
        usage = read_known(sample.kv_cache_usage)
        share = "?" if usage is None else f"{usage:.0%}"
        text = f"{share} of the KV cache is in use ({_print_band(kv_cache, percent=100)} %)"
        yield ReadinessReason.KV_CACHE, kv_cache.read_level(sample.kv_cache_usage), text
        before, after = self._allocations, read_known(sample.allocation_failures)
        grew = None if before is None or after is None else after > before
        self._allocations = before if after is None else after
        text = "the engine keeps failing to allocate memory for its requests"
        yield ReadinessReason.ALLOCATION_FAILURES, read_flag(grew), text


def _print(value: float | None) -> str:
    known = read_known(value)
    return "?" if known is None else f"{known:g}"


def _print_band(band: Band, percent: float = 1) -> str:
    return f"leaves at {band.leave_at * percent:g}, returns at {band.return_at * percent:g}"
