"""A changed file of callers is read once it is whole; one that is bad changes nothing and is told once."""

import asyncio
import contextlib

import pytest

from envoy_ext.domain.callers import CallerBook, CallerRules
from envoy_ext.domain.errors import ConfigError
from envoy_ext.services.callers import LOOK_EVERY_S, Callers
from tests.support.callers import BLIND, build_entry


class File:
    """A file in the hands of a test."""

    def __init__(self, *names: str) -> None:
        self.mark: object = 1
        self.names: tuple[str, ...] | None = names
        self.reads = 0

    def read_mark(self) -> object:
        return self.mark

    def load(self) -> CallerBook:
        self.reads += 1
        if self.names is None:
            raise ConfigError(["callers.yaml: callers[0].name: bad", "callers.yaml: more"])
        return CallerBook([build_entry(name) for name in self.names], BLIND)

    def write(self, mark: object, *names: str) -> None:
        self.mark, self.names = mark, names


class Heard:
    def __init__(self) -> None:
        self.words: list[object] = []

    def note_read(self, callers: int) -> None:
        self.words.append(callers)

    def note_refused(self, mistakes: list[str]) -> None:
        self.words.append(mistakes)


def name_all(callers: Callers) -> list[str]:
    return [one.name for one in callers.show().entries]


async def test_a_file_is_read_when_it_has_changed_and_stands_still() -> None:
    file, heard = File("alice"), Heard()
    callers = Callers(CallerRules(checks_keys=True), file, heard)
    assert (name_all(callers), callers.rules.checks_keys) == (["alice"], True)
    await callers.look(file)
    file.write(2, "alice", "bob")
    await callers.look(file)
    file.write(3, "alice", "bob", "carol")  # whoever writes it has not finished
    await callers.look(file)
    assert (name_all(callers), file.reads) == (["alice"], 1)
    for _ in range(3):
        await callers.look(file)
    assert (name_all(callers), file.reads) == (["alice", "bob", "carol"], 2)
    assert heard.words == [1, 3]


async def test_a_bad_file_leaves_the_one_before_in_force_and_is_told_once() -> None:
    file, heard = File("alice"), Heard()
    callers = Callers(CallerRules(), file, heard)
    file.mark, file.names = None, None  # it has gone, too
    for _ in range(4):
        await callers.look(file)
    assert name_all(callers) == ["alice"]
    assert callers.show().refused == ("callers.yaml: callers[0].name: bad", "callers.yaml: more")
    file.write(5, "bob")
    for _ in range(2):
        await callers.look(file)
    assert (name_all(callers), callers.show().refused) == (["bob"], ())
    assert heard.words == [1, ["callers.yaml: callers[0].name: bad", "callers.yaml: more"], 1]


def test_a_start_with_a_bad_file_is_none() -> None:
    file = File()
    file.names = None
    with pytest.raises(ConfigError):
        Callers(CallerRules(), file, Heard())


async def test_it_looks_again_and_again_and_without_a_file_never() -> None:
    file, slept = File("alice"), asyncio.Queue[float]()

    async def sleep(seconds: float) -> None:
        slept.put_nowait(seconds)
        if slept.qsize() > 3:
            await asyncio.Event().wait()

    callers = Callers(CallerRules(), file, Heard(), sleep=sleep)
    task = asyncio.ensure_future(callers.run())
    file.write(2, "bob")
    async with asyncio.timeout(10):
        while slept.qsize() < 4:
            await asyncio.sleep(0)
    assert [slept.get_nowait() for _ in range(4)] == [LOOK_EVERY_S] * 4
    assert name_all(callers) == ["bob"]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await Callers(CallerRules(), None, Heard(), sleep=sleep).run()
