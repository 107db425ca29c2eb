"""Several observers as one, and a broken one among them."""

import pytest

from envoy_ext.domain.notes import Note
from envoy_ext.observability.observers import Observers
from tests.support.notes import KINDS, SAMPLES, exchange_ended


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def note(self, note: Note) -> None:
        self.told.append(("note", note))

    def note_bug(self, where: str, error: BaseException) -> None:
        self.told.append(("bug", where, type(error).__name__))

    def note_journal(self, seconds: float, failed: bool) -> None:
        self.told.append(("journal", seconds, failed))


class Broken:
    """Fails whatever it is told."""

    def note(self, note: Note) -> None:
        raise LookupError("no label of this name")

    def note_bug(self, where: str, error: BaseException) -> None:
        raise LookupError("no counter either")

    def note_journal(self, seconds: float, failed: bool) -> None:
        raise LookupError("nor a histogram")


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_hears_every_kind_of_note(kind: type) -> None:
    parts = [Recorder(), Recorder()]
    Observers(parts).note(SAMPLES[kind])
    assert [part.told for part in parts] == [[("note", SAMPLES[kind])]] * 2


def test_bugs_and_journal_times_are_handed_on_too() -> None:
    part = Recorder()
    observers = Observers([part])
    observers.note_bug("session", KeyError())
    observers.note_journal(0.5, failed=True)
    assert part.told == [("bug", "session", "KeyError"), ("journal", 0.5, True)]


def test_a_broken_part_reaches_neither_the_caller_nor_the_parts_behind_it_and_is_reported() -> None:
    before, after = Recorder(), Recorder()
    observers = Observers([before, Broken(), after])
    note = exchange_ended()
    observers.note(note)
    observers.note_journal(0.5, failed=False)
    report = ("bug", "observer Broken", "LookupError")
    assert before.told == [("note", note), report, ("journal", 0.5, False), report]
    assert after.told == [report, ("note", note), report, ("journal", 0.5, False)]


def test_parts_that_are_all_broken_are_survived() -> None:
    observers = Observers([Broken(), Broken()])
    observers.note(exchange_ended())
    observers.note_bug("session", KeyError())
    observers.note_journal(0.5, failed=True)
