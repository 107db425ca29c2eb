"""One Redis server follows another, by Sentinels or in a Cluster: nothing is lost that replicas confirmed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_lane import Replicas
from envoy_ext.adapters.journal_redis_server import ServerFacts, derive_guarantees, list_doubts
from envoy_ext.adapters.journal_redis_way import RedisPlace, build_way
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.ownership import FIRST_TOKEN
from tests.contract.test_journal_redis_access import DOC, LOGIN, RIGHTS, allow, list_denials
from tests.support.journals import keep, use_everything
from tests.support.records import begun, ended
from tests.support.redis_server import RedisServer, pick_port, redis_server

ONE = Replicas(1, 1.0)
FAILED_OVER_WITHIN_S = 40.0


@dataclass
class Pair:
    master: RedisServer
    replica: RedisServer


def wait_replicated(master: RedisServer, replicas: int = 1) -> None:
    """Until so many replicas have everything."""
    with master.ask() as asked:
        assert asked.set("synced", "x")
        while asked.wait(replicas, 1_000) < replicas:
            pass


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    fast = {"repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1"}
    with ExitStack() as stack:
        a = stack.enter_context(redis_server(tmp_path / "a", **fast))
        b = stack.enter_context(redis_server(tmp_path / "b", replicaof=f"127.0.0.1 {a.port}", **fast))
        wait_replicated(a)
        yield Pair(a, b)


def at(server: RedisServer, **more: object) -> RedisPlace:
    return RedisPlace(nodes=(("127.0.0.1", server.port),), **more)  # type: ignore[arg-type]


@dataclass
class Load:
    """Operations that are begun one after the other, for as long as the block runs."""

    journal: RedisJournal
    seat: SeatId
    acknowledged: list[str]
    refused: int = 0

    async def run(self, lane: int) -> None:
        number = 0
        while True:
            number += 1
            operation = f"op_{lane}_{number}"
            try:
                await self.journal.begin(begun(operation), self.seat)
                self.acknowledged.append(operation)
            except JournalUnavailable:
                self.refused += 1
                await asyncio.sleep(0.01)

    async def wait_more(self, count: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(FAILED_OVER_WITHIN_S):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.01)

    async def list_lost(self) -> set[str]:
        there = {one.operation_id for one in await self.journal.list_recent(1_000_000)}
        return set(self.acknowledged) - there


@pytest.fixture
async def loads() -> AsyncIterator[list[asyncio.Task[None]]]:
    running: list[asyncio.Task[None]] = []
    yield running
    await end(running)


async def end(running: list[asyncio.Task[None]]) -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def start_load(journal: RedisJournal, loads: list[asyncio.Task[None]], lanes: int = 4) -> Load:
    load = Load(journal, await journal.take_seat("gw"), [])
    loads += [asyncio.create_task(load.run(lane)) for lane in range(lanes)]
    return load


# --- replicas that confirm ------------------------------------------------------------------


async def test_a_write_that_no_replica_confirms_does_not_count_and_may_be_repeated(pair: Pair) -> None:
    journal = await RedisJournal.open(at(pair.master), replicas=ONE)
    assert journal.guarantees == {"process_death", "store_failover"}
    seat = await journal.take_seat("gw")
    await journal.begin(begun("op_1"), seat)
    pair.replica.signal(signal.SIGSTOP)
    try:
        with pytest.raises(JournalUnavailable) as caught:
            await journal.begin(begun("op_2"), seat)
        assert "0 of 1 replicas have confirmed within 1 s" in str(caught.value)
        assert "lower journal.wait_replicas" in str(caught.value)
        # It wrote nothing by itself, and is still no proof that the first try's write has arrived.
        with pytest.raises(JournalUnavailable, match="0 of 1 replicas"):
            await journal.begin(begun("op_2"), seat)
        assert await journal.get(OperationId("op_1")) is not None, "looks wait for nobody"
    finally:
        pair.replica.signal(signal.SIGCONT)
    async with asyncio.timeout(20):
        while True:
            try:
                assert await journal.begin(begun("op_2"), seat) is None
                break
            except JournalUnavailable:
                await asyncio.sleep(0.05)
    with pair.replica.ask() as asked:
        assert asked.exists("{envoy-ext}:records:op_2")
    await journal.close()


async def test_a_repeat_at_a_server_that_became_a_replica_is_not_taken_for_done(pair: Pair) -> None:
    journal = await RedisJournal.open(at(pair.master), replicas=ONE, call_s=0.3)
    seat = await journal.take_seat("gw")
    await journal.begin(begun("op_1"), seat)
    with pair.master.ask() as asked:
        asked.replicaof("127.0.0.1", "1")
    with pytest.raises(JournalUnavailable, match="READONLY: it is a replica"):
        await journal.begin(begun("op_1"), seat)  # it is there, so that nothing is written
    await journal.close()


async def test_a_replica_that_is_not_waited_for_could_follow_so_nothing_is_promised(
    pair: Pair, tmp_path: Path
) -> None:
    with redis_server(
        tmp_path / "c", replicaof=f"127.0.0.1 {pair.master.port}", repl_diskless_sync_delay="0"
    ):
        wait_replicated(pair.master, 2)
        journal = await RedisJournal.open(at(pair.master), replicas=ONE)
        assert journal.guarantees == {"process_death"}
        assert "2 replicas and 1 are waited for" in journal.doubts[0]
        await journal.close()
        journal = await RedisJournal.open(at(pair.master), replicas=Replicas(2, 0.5))
        assert journal.guarantees == {"process_death", "store_failover"}
        await keep(journal, [begun()])
        await journal.close()


@pytest.mark.parametrize(
    ("facts", "wait", "kept", "doubts"),
    [
        (ServerFacts("7", False, None, "noeviction", 0), 0, set(), 0),
        (ServerFacts("7", True, "everysec", "noeviction", 0), 0, set(), 0),
        (ServerFacts("7", True, "no", "noeviction", 0), 0, set(), 0),
        (ServerFacts("7", True, "always", "noeviction", 0, "no"), 0, {"power_loss"}, 0),
        (ServerFacts("7", True, "always", "noeviction", 0, "yes"), 0, set(), 1),
        (ServerFacts("7", True, "always", "noeviction", 0, None), 0, set(), 0),
        (ServerFacts("7", False, "always", "noeviction", 0), 0, set(), 0),
        (ServerFacts("7", True, None, "noeviction", 0), 0, set(), 1),
        (ServerFacts("7", False, None, "noeviction", 1), 0, set(), 0),
        (ServerFacts("7", False, None, "noeviction", 1), 1, {"store_failover"}, 1),
        (ServerFacts("7", True, "everysec", "noeviction", 1), 1, {"store_failover"}, 0),
        (ServerFacts("7", True, "always", "noeviction", 3, "no"), 2, {"power_loss"}, 1),
        (ServerFacts("7", True, "always", "noeviction", 2, "no"), 2, {"power_loss", "store_failover"}, 0),
        (ServerFacts("7", False, None, "noeviction", 0), 1, {"store_failover"}, 2),
        (ServerFacts(), 1, {"store_failover"}, 2),
        (ServerFacts(), 0, set(), 2),
    ],
)
def test_what_is_promised_is_what_the_server_and_the_configuration_carry(
    facts: ServerFacts, wait: int, kept: set[str], doubts: int
) -> None:
    assert derive_guarantees(facts, wait) == {"process_death", *kept}
    assert len(list_doubts(facts, wait)) == doubts


# --- Sentinels ------------------------------------------------------------------------------


@pytest.fixture
def sentinel(pair: Pair, tmp_path: Path) -> Iterator[RedisServer]:
    options = {
        "sentinel monitor main": f"127.0.0.1 {pair.master.port} 1",
        "sentinel down-after-milliseconds main": "1500",
        "sentinel failover-timeout main": "5000",
    }
    server = RedisServer(tmp_path / "sentinel", options, binary="redis-sentinel")
    try:
        server.start()
        with server.ask() as asked:
            while not asked.sentinel_slaves("main"):
                pass
        yield server
    finally:
        server.kill()


async def test_a_master_that_dies_is_followed_and_nothing_that_a_replica_confirmed_is_lost(
    pair: Pair, sentinel: RedisServer, loads: list[asyncio.Task[None]]
) -> None:
    # The first of them is not there: the others are asked.
    nodes = (("127.0.0.1", pick_port()), ("127.0.0.1", sentinel.port))
    place = RedisPlace(nodes=nodes, service="main")
    assert place.shown == f"the master of main (sentinels 127.0.0.1:{nodes[0][1]}, 127.0.0.1:{sentinel.port})"
    journal = await RedisJournal.open(place, replicas=ONE)
    assert journal.guarantees == {"process_death", "store_failover"}
    load = await start_load(journal, loads)
    await load.wait_more(200)
    pair.master.kill()
    before = len(load.acknowledged)
    # As its supervisor does: it comes back, as a replica of the one that follows.
    async with asyncio.timeout(FAILED_OVER_WITHIN_S):
        with pair.replica.ask() as asked:
            while asked.info("replication")["role"] != "master":
                await asyncio.sleep(0.01)
    on_their_way = 4
    assert len(load.acknowledged) <= before + on_their_way, "with nobody who confirms, nothing counts"
    await asyncio.to_thread(pair.master.start)
    with pair.master.ask() as asked:
        asked.replicaof("127.0.0.1", str(pair.replica.port))
    await load.wait_more(200)
    await end(loads)
    assert await load.list_lost() == set()
    await journal.append([ended("op_0_1")], FIRST_TOKEN)
    await use_everything(journal, "op_after")
    await journal.close()


async def test_the_documented_right_at_a_sentinel_is_enough(pair: Pair, sentinel: RedisServer) -> None:
    allow(pair.master, RIGHTS)
    assert "`+sentinel|masters`" in DOC.read_text()
    place = RedisPlace(
        nodes=(("127.0.0.1", sentinel.port),), service="main", login=LOGIN, sentinel_login=LOGIN
    )
    allow(sentinel, ["on", ">PASSWORD", "-@all", "resetchannels"])
    with pytest.raises(JournalUnavailable, match=r"does not let this user run SENTINEL\|MASTERS"):
        await RedisJournal.open(place)
    allow(sentinel, ["on", ">PASSWORD", "-@all", "resetchannels", "+sentinel|masters"])
    journal = await RedisJournal.open(place)
    await use_everything(journal)
    await journal.close()
    assert list_denials(sentinel) == list_denials(pair.master) == []


async def test_a_service_that_no_sentinel_knows_is_said(sentinel: RedisServer) -> None:
    place = RedisPlace(nodes=(("127.0.0.1", sentinel.port),), service="another")
    with pytest.raises(JournalUnavailable) as caught:
        await RedisJournal.open(place)
    said = str(caught.value)
    assert "no sentinel that was asked knows a master of this service: see journal.sentinel" in said
    assert f"127.0.0.1:{sentinel.port}" in said


# --- a Cluster ------------------------------------------------------------------------------


@dataclass
class Cluster:
    nodes: list[RedisServer]
    replica: RedisServer
    """Of the node that has the journal's slot."""
    owner: RedisServer

    @property
    def place(self) -> RedisPlace:
        other = next(node for node in self.nodes if node is not self.owner)
        return at(other, cluster=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    options = {"cluster_enabled": "yes", "cluster_node_timeout": "1000", "repl_diskless_sync_delay": "0"}
    with ExitStack() as stack:
        servers = [
            # Unless told, the nodes speak with each other at a port 10,000 above, which may not be free.
            stack.enter_context(redis_server(tmp_path / f"n{n}", cluster_port=str(pick_port()), **options))
            for n in range(4)
        ]
        clients = [stack.enter_context(server.ask()) for server in servers]
        for number, (low, high) in enumerate(((0, 5460), (5461, 10922), (10923, 16383))):
            clients[number].execute_command("CLUSTER", "ADDSLOTSRANGE", low, high)
            clients[number].execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in servers[1:]:
            bus = server.options["cluster-port"]
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        slot = int(clients[0].execute_command("CLUSTER", "KEYSLOT", "{envoy-ext}:journal"))
        owner = min(slot // 5461, 2)
        owner_id = clients[owner].execute_command("CLUSTER", "MYID")
        while owner_id not in clients[3].execute_command("CLUSTER", "NODES"):
            pass
        clients[3].execute_command("CLUSTER", "REPLICATE", owner_id)
        for client in clients:
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                pass
        while clients[owner].wait(1, 1_000) < 1:
            pass
        while b" slave " not in clients[(owner + 1) % 3].execute_command("CLUSTER", "NODES"):
            pass
        yield Cluster(servers[:3], servers[3], servers[owner])


async def test_a_cluster_keeps_a_journal_at_one_node_and_goes_on_at_its_replica(
    cluster: Cluster, loads: list[asyncio.Task[None]]
) -> None:
    journal = await RedisJournal.open(cluster.place, replicas=ONE)
    await use_everything(journal, "op_before")
    load = await start_load(journal, loads)
    await load.wait_more(100)
    # An orderly one: the old owner lives on and sends everybody away.
    with cluster.replica.ask() as asked:
        asked.execute_command("CLUSTER", "FAILOVER")
    async with asyncio.timeout(FAILED_OVER_WITHIN_S):
        with cluster.owner.ask() as asked:
            while asked.info("replication")["role"] != "slave":
                await asyncio.sleep(0.01)
    await load.wait_more(100)
    await end(loads)
    assert await load.list_lost() == set()
    for node in cluster.nodes:
        if node is not cluster.owner:
            with node.ask() as asked:
                assert asked.dbsize() == 0
    await journal.close()


async def test_a_node_of_a_cluster_that_dies_takes_nothing_with_it_that_its_replica_confirmed(
    cluster: Cluster, loads: list[asyncio.Task[None]]
) -> None:
    journal = await RedisJournal.open(cluster.place, replicas=ONE)
    assert journal.guarantees == {"process_death", "store_failover"}
    load = await start_load(journal, loads)
    await load.wait_more(100)
    cluster.owner.kill()
    async with asyncio.timeout(FAILED_OVER_WITHIN_S):
        with cluster.replica.ask() as asked:
            while asked.info("replication")["role"] != "master":
                await asyncio.sleep(0.01)
    await asyncio.to_thread(cluster.owner.start)
    await load.wait_more(100)
    await end(loads)
    assert await load.list_lost() == set()
    await journal.close()


async def test_whoever_asks_at_once_is_shown_one_way(cluster: Cluster) -> None:
    way = build_way(cluster.place, "{envoy-ext}:journal")
    for _ in range(2):
        found = await asyncio.gather(*(way.find() for _ in range(8)))
        assert len({id(one) for one in found}) == 1
        await way.mend()
    await way.close()


async def test_the_documented_rights_at_a_cluster_are_enough(cluster: Cluster) -> None:
    rights = (RIGHTS, [*RIGHTS, *["+cluster|slots", "+command"]])
    assert "`+cluster|slots +command`" in DOC.read_text()
    place = at(cluster.owner, cluster=True, login=LOGIN)
    for some in rights:
        for node in cluster.nodes:
            allow(node, some)
        if some is RIGHTS:
            with pytest.raises(JournalUnavailable, match="does not let this user run CLUSTER SLOTS"):
                await RedisJournal.open(place)
    journal = await RedisJournal.open(place)
    await use_everything(journal)
    await journal.close()
    assert [denial for node in cluster.nodes for denial in list_denials(node)] == []


async def test_a_node_of_a_cluster_that_is_taken_for_a_server_says_so(cluster: Cluster) -> None:
    other = next(node for node in cluster.nodes if node is not cluster.owner)
    with pytest.raises(JournalUnavailable) as caught:
        await RedisJournal.open(at(other))
    assert "MOVED: it is a node of a Redis Cluster: set journal.cluster: true" in str(caught.value)


async def test_a_server_that_is_taken_for_a_cluster_says_so(redis: RedisServer) -> None:
    with pytest.raises(JournalUnavailable) as caught:
        await RedisJournal.open(at(redis, cluster=True))
    assert f"redis://127.0.0.1:{redis.port} cannot be opened: " in str(caught.value)
    assert "remove journal.cluster" in str(caught.value)
