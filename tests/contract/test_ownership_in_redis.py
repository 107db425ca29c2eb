"""The hostile network between gateways, workers and the store, with the store at a real Redis server."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_way import RedisPlace
from envoy_ext.ports import Journal
from tests.domain.test_ownership_machine import OwnershipMachine
from tests.support.redis_server import RedisServer

PREFIXES = itertools.count(1)


class AtOnce:
    """A store whose calls have ended when they return: the machine decides what is late, not the network."""

    def __init__(self, runner: asyncio.Runner, store: Journal) -> None:
        self._runner = runner
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: object) -> object:
            return self._runner.run(getattr(self._store, name)(*arguments))

        return call


class OwnershipInRedis(OwnershipMachine):
    def __init__(self, redis: RedisServer) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = RedisPlace(nodes=(("127.0.0.1", redis.port),))
        self.journal: RedisJournal | None = None

    def build_store(self) -> Any:
        self.journal = self.runner.run(RedisJournal.open(self.place, f"owners-{next(PREFIXES)}"))
        return AtOnce(self.runner, self.journal)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if self.journal is not None:
                self.runner.run(self.journal.close())
            self.runner.close()


def test_an_operation_has_one_owner_and_a_key_one_publisher(redis: RedisServer) -> None:
    bounds = settings(max_examples=12, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(lambda: OwnershipInRedis(redis), settings=bounds)
