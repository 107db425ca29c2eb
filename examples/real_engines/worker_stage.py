"""A stage whose engines have workers, and what is read of both sides: one clock for all of it."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from real_engines.client import Stream
from real_engines.engine import Replica
from real_engines.lease_desk import LeaseDesk, Word
from real_engines.processes import wait_for
from real_engines.stage import Checks, Outcome, Stage

STOPPED_LINE = "attempt_stopped"
"""What the worker itself writes when an attempt has stopped before its end."""


@dataclass
class WorkerStage(Stage):
    """A gateway over two replicas whose workers ask at the desk."""

    desk: LeaseDesk
    abort_line: str
    """What the engine writes when it has ended a request."""


@dataclass(frozen=True)
class Workers:
    """How an engine is started with its worker, and what is played then."""

    options: tuple[str, ...]
    """For the engine's command line."""
    environment: Mapping[str, str]
    abort_line: str
    scenarios: Mapping[str, Callable[[WorkerStage], Outcome]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """What the engine's own page says."""

    running: float
    work: float
    tokens: float


def read_page(replica: Replica) -> Page:
    names = (replica.engine.running, replica.engine.work, replica.engine.tokens)
    return Page(*(replica.read_metric(name) for name in names))


class LogReader:
    """The times of a replica's log lines from here on, in this machine's monotonic seconds.

    The example's engine.py has it begin each line with the seconds since 1970.
    """

    def __init__(self, replica: Replica) -> None:
        self._log = replica.log
        self._from = self._log.stat().st_size
        self._offset = time.time() - time.monotonic()

    def read_time(self, line: str) -> float:
        """When the first line with these words was written; waits for it."""
        return wait_for(lambda: self._find(line), f"a line with {line!r} in {self._log.name}")

    def has(self, line: str) -> bool:
        return self._find(line) is not None

    def _find(self, line: str) -> float | None:
        with self._log.open("rb") as log:
            log.seek(self._from)
            written = log.read().decode(errors="replace")
        found = re.search(rf"^(\d+\.\d+) .*{re.escape(line)}", written, re.MULTILINE)
        return None if found is None else float(found[1]) - self._offset


def check_stopped(stage: WorkerStage, word: Word, log: LogReader, others: int = 0) -> Checks:
    """A word of a stop that was true when it came; so many others were running beside it."""
    aborted_at, stopped_at = log.read_time(stage.abort_line), log.read_time(STOPPED_LINE)
    return {
        "the engine's server had ended it, then the worker said so, then the word came": aborted_at
        <= stopped_at
        <= word.at,
        "as the word came, the engine's own page had it among the running no more": word.saw.running
        == others,
    }


def check_nothing_follows(stage: WorkerStage, replica: Replica, word: Word) -> Checks:
    """Asks an engine with no other work for one token, which is all that may have been computed since."""
    Stream(replica.url, stage.ask_stream("Go on.", max_tokens=1)).read_all()
    now = read_page(replica)
    return {
        "from then on not one token, up to the next question's": now.tokens == word.saw.tokens + 1,
        "and not one step": now.work == word.saw.work + 1,
    }


def tell_order(stage: WorkerStage, begun_at: float, log: LogReader, word: Word) -> str:
    """The order of things, in milliseconds from their cause."""
    moments = {
        "the engine's server ended it": log.read_time(stage.abort_line),
        "the worker says so": log.read_time(STOPPED_LINE),
        "the word is here": word.at,
    }
    told = ", ".join(f"{what} at {(at - begun_at) * 1000:.0f} ms" for what, at in moments.items())
    return f"{told}; running {word.saw.running:.0f} on its page then"
