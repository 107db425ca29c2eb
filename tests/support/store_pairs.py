"""A file and a Redis journal that several gateways have open, beside the memory store of a machine."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.ports import Store
from tests.support.redis_server import RedisServer

_PREFIXES: Final = itertools.count(1)


class StorePairs:
    """`run` runs one coroutine to its end."""

    def __init__(
        self, redis: RedisServer, gateways: int, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self.opened: list[list[Store]] = []
        """As each gateway has them open."""
        self._place = RedisPlace(nodes=(("127.0.0.1", redis.port),))
        self._prefix = f"pairs-{next(_PREFIXES)}"
        self._directory = tempfile.TemporaryDirectory()
        self._lives = 0
        self._gateways = gateways
        self._run = run
        self._path.parent.mkdir()
        self._open()

    def go_on_with_the_disk(self) -> None:
        """The machine of the file stops, and another goes on with what is on its disk."""
        before = self._path
        self._lives += 1
        # As a kill leaves the files: what was committed last stands in the log beside the database.
        shutil.copytree(before.parent, self._path.parent)
        self._close()
        self._open()

    def end(self) -> None:
        """Close all, and keep nothing."""
        self._close()
        self._directory.cleanup()

    @property
    def _path(self) -> Path:
        return Path(self._directory.name) / f"life-{self._lives}" / "journal.db"

    def _open(self) -> None:
        self.opened = [[self._run(one) for one in self._list_opens()] for _ in range(self._gateways)]

    def _list_opens(self) -> list[Coroutine[Any, Any, Store]]:
        return [
            SqliteJournal.open(self._path, shared=True),
            RedisJournal.open(self._place, self._prefix, suffix=lambda: ""),
        ]

    def _close(self) -> None:
        for one in itertools.chain(*self.opened):
            self._run(one.close())
