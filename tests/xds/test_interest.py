"""What a stream is interested in: everything, some names, or nothing, and the ways between them.

Played on clusters, which can be asked for in every way; endpoints by name are in `test_session`.
"""

from typing import Any

import pytest

from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.session import Session
from envoy_ext.xds.snapshot import Snapshot, build_snapshot
from tests.xds.builders import cluster, read_name, read_number

either = pytest.mark.parametrize("dialect", [STATE_OF_THE_WORLD, DELTA], ids=["sotw", "delta"])


class Client:
    """Takes every answer, says so, and knows what it holds."""

    def __init__(self, dialect: Dialect, **clusters: int) -> None:
        self.dialect = dialect
        self.session = Session(dialect)
        self.session.publish(offer(**clusters))
        self.names: set[str] = set()
        self.held: dict[str, int] = {}
        self.answers = 0

    def ask(self, *names: str) -> int:
        """Be interested in these from now on; how many answers that gave."""
        wanted = {name if name == "*" else f"pool_{name}" for name in names}
        if self.dialect is STATE_OF_THE_WORLD:
            request = self.build(resource_names=sorted(wanted))
        else:
            request = self.build(
                resource_names_subscribe=sorted(wanted - self.names),
                resource_names_unsubscribe=sorted(self.names - wanted),
            )
        before, self.names = self.answers, wanted
        if "*" not in wanted:
            for name in self.held.keys() - wanted:
                del self.held[name]
        self.take(self.session.receive(request).responses)
        return self.answers - before

    def publish(self, **clusters: int) -> int:
        """The server offers this; how many answers that gave."""
        before = self.answers
        self.take(self.session.publish(offer(**clusters)).responses)
        return self.answers - before

    def take(self, responses: tuple[Any, ...]) -> None:
        for response in responses:
            self.answers += 1
            if self.dialect is STATE_OF_THE_WORLD:
                self.held = dict(read(one.value) for one in response.resources)
                acknowledgement = self.build(response.nonce, resource_names=sorted(self.names))
            else:
                self.held |= dict(read(one.resource.value) for one in response.resources)
                for name in response.removed_resources:
                    self.held.pop(name, None)
                acknowledgement = self.build(response.nonce)
            self.take(self.session.receive(acknowledgement).responses)

    def build(self, nonce: str = "", **fields: Any) -> Any:
        if self.dialect is STATE_OF_THE_WORLD and self.answers and not nonce:
            nonce = str(self.answers)  # of the last answer: nonces are numbered, one kind is asked for
        return self.dialect.request(type_url=Kind.CDS.type_url, response_nonce=nonce, **fields)

    def read(self) -> dict[str, int]:
        return {name.removeprefix("pool_"): number for name, number in self.held.items()}


def offer(**clusters: int) -> Snapshot:
    return build_snapshot({Kind.CDS: [cluster(name, number) for name, number in clusters.items()]})


def read(value: bytes) -> tuple[str, int]:
    return read_name(Kind.CDS, value), read_number(Kind.CDS, value)


@either
def test_no_names_and_a_star_both_ask_for_everything(dialect: Dialect) -> None:
    for names in ((), ("*",)):
        client = Client(dialect, a=1, b=1)
        client.ask(*names)
        assert client.read() == {"a": 1, "b": 1}
        client.publish(a=2, c=1)
        assert client.read() == {"a": 2, "c": 1}
        assert client.publish(a=2, c=1) == 0


@either
def test_whoever_names_some_gets_those_and_hears_of_no_others(dialect: Dialect) -> None:
    client = Client(dialect, a=1, b=1, c=1)
    client.ask("a", "c")
    assert client.read() == {"a": 1, "c": 1}
    assert client.publish(a=1, b=2, c=1) == 0
    assert client.publish(a=1, c=1) == 0, "what it never asked for has gone"
    assert client.publish(a=3, b=2, c=1) == 1
    assert client.read() == {"a": 3, "c": 1}
    assert client.publish(b=2, c=1) == 1
    assert client.read() == {"c": 1}


@either
def test_a_name_more_is_answered_and_one_less_is_not(dialect: Dialect) -> None:
    client = Client(dialect, a=1, b=1)
    client.ask("a")
    assert client.ask("a", "b") == 1
    assert client.read() == {"a": 1, "b": 1}
    client.ask("b")
    assert client.read() == {"b": 1}
    assert client.publish(a=2, b=1) == 0
    assert client.ask("b", "a") == 1
    assert client.read() == {"a": 2, "b": 1}


@either
def test_names_beside_a_star_add_nothing_and_can_be_left(dialect: Dialect) -> None:
    client = Client(dialect, a=1, b=1)
    client.ask("*", "a")
    assert client.read() == {"a": 1, "b": 1}
    client.ask("*")
    assert client.read() == {"a": 1, "b": 1}
    assert client.publish(a=2, b=2) == 1
    assert client.read() == {"a": 2, "b": 2}


@either
def test_whoever_leaves_the_star_keeps_the_names(dialect: Dialect) -> None:
    client = Client(dialect, a=1, b=1)
    client.ask("*", "a")
    client.ask("a")
    assert client.read() == {"a": 1}
    assert client.publish(a=1, b=2) == 0
    client.ask("*")
    assert client.read() == {"a": 1, "b": 2}


@either
def test_whoever_leaves_everything_hears_nothing_and_may_come_back(dialect: Dialect) -> None:
    client = Client(dialect, a=1, b=1)
    client.ask("a")
    client.ask()
    assert client.read() == {}
    assert client.publish(a=2, b=2) == 0
    client.ask("a")
    assert client.read() == {"a": 2}
