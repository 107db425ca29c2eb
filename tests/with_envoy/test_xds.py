"""A real Envoy on our streams, in both protocols: what is published is what it does."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.access_loggers.file.v3 import file_pb2  # noqa: F401 (named by a listener)
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401 (likewise)
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,  # noqa: F401 (likewise)
)
from google.protobuf import json_format

from envoy_ext.adapters.ads import DIALECTS
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import EndpointView, Health, PoolView, Resource, build_assignment, read_resource
from envoy_ext.xds.snapshot import Snapshot, build_snapshot
from tests.xds.builders import read_name
from tests.xds.envoy_lab import ADS, Lab, Replica, build_cluster, build_listener, run_lab

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=["sotw", "delta"])


@contextlib.asynccontextmanager
async def run_replicas(names: str) -> AsyncIterator[list[Replica]]:
    async with contextlib.AsyncExitStack() as opened:
        yield [await opened.enter_async_context(Replica(name)) for name in names]


def view(replica: Replica, health: Health = Health.READY, weight: int = 1) -> EndpointView:
    return EndpointView(ReplicaId(replica.name), "127.0.0.1", replica.port, health, weight, "z1", "f1")


def pool(name: str, *endpoints: EndpointView) -> Resource:
    return build_assignment(PoolView(PoolName(name), endpoints))


def chat(*endpoints: EndpointView) -> Snapshot:
    """Endpoints of the one pool that Envoy has a cluster for."""
    return build_snapshot({Kind.EDS: [pool("chat", *endpoints)]})


def one_cluster(access_log: Path, **more: Any) -> dict[str, Any]:
    """A cluster and a listener in the bootstrap; only endpoints come from us."""
    route = {"match": {"prefix": "/"}, "route": {"cluster": "pool_chat"}}
    routes = {"route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}}
    return {
        "clusters": [build_cluster("pool_chat", **more)],
        "listeners": [build_listener(routes, access_log)],
    }


def with_default_panic(access_log: Path) -> dict[str, Any]:
    return one_cluster(access_log, common_lb_config={})


def read_sent(lab: Lab, kind: Kind) -> list[list[str]]:
    """The names in each answer of a kind."""
    if lab.dialect is STATE_OF_THE_WORLD:
        return [[read_name(kind, one.value) for one in sent.resources] for sent in lab.list_sent(kind)]
    return [[one.name for one in sent.resources] for sent in lab.list_sent(kind)]


# --- endpoints ------------------------------------------------------------------------------------


async def test_weights_and_health_arrive_with_a_push(dialect: Dialect) -> None:
    async with (
        run_replicas("abc") as [a, b, c],
        run_lab(dialect, chat(view(a), view(b)), static=one_cluster) as lab,
    ):
        assert await lab.list_hosts("pool_chat") == {a.port: ("HEALTHY", 1), b.port: ("HEALTHY", 1)}
        await lab.offer(chat(view(a, weight=3), view(b, weight=1), view(c, Health.DRAINING, weight=7)))
        assert await lab.list_hosts("pool_chat") == {
            a.port: ("HEALTHY", 3),
            b.port: ("HEALTHY", 1),
            c.port: ("DRAINING", 7),
        }
        assert await lab.ask_whom(40) == {"a": 30, "b": 10}
        await lab.offer(chat(view(a, Health.UNREADY), view(b), view(c, Health.DRAINING)))
        assert (await lab.list_hosts("pool_chat"))[a.port] == ("UNHEALTHY", 1)
        assert await lab.ask_whom(10) == {"b": 10}
        assert lab.list_refusals() == []
        assert lab.hub.statistics().nodes == ("edge-1",)


async def test_without_endpoints_requests_fail_at_once_and_the_first_one_back_gets_them(
    dialect: Dialect,
) -> None:
    async with run_replicas("a") as [a], run_lab(dialect, chat(view(a)), static=one_cluster) as lab:
        assert await lab.ask_whom(1) == {"a": 1}
        attempts = await lab.read_stat("cluster.pool_chat.upstream_rq_total")
        await lab.offer(chat())
        assert await lab.list_hosts("pool_chat") == {}
        refused = await lab.ask(10)
        assert Counter((one.status, one.flags) for one in refused) == {(503, "UH"): 10}
        assert await lab.read_stat("cluster.pool_chat.upstream_rq_total") == attempts
        await lab.offer(chat(view(a)))
        assert await lab.ask_whom(3) == {"a": 3}


async def test_a_cluster_that_starts_without_endpoints_does_not_keep_envoy_waiting(dialect: Dialect) -> None:
    """Nobody knows of the pool: Envoy would wait 15 s for word of it."""
    async with run_lab(dialect, build_snapshot({Kind.EDS: []}), static=one_cluster) as lab:
        assert await lab.read_stat("cluster.pool_chat.init_fetch_timeout") == 0
        [refused] = await lab.ask()
        assert (refused.status, refused.flags) == (503, "UH")


@pytest.mark.parametrize("fit", [Health.READY, Health.DRAINING, Health.UNREADY])
async def test_a_threshold_of_zero_leaves_nobody_who_is_not_ready(dialect: Dialect, fit: Health) -> None:
    async with (
        run_replicas("ab") as [a, b],
        run_lab(dialect, chat(view(a, Health.UNREADY), view(b, fit)), static=one_cluster) as lab,
    ):
        seen = {(one.status, one.flags, one.replica) for one in await lab.ask(4)}
        assert {(status, flags) for status, flags, _ in seen} == (
            {(200, "-")} if fit is Health.READY else {(503, "UH")}
        )


async def test_in_panic_envoy_sends_work_to_those_who_are_not_ready(dialect: Dialect) -> None:
    """Its default threshold, and why a pool's cluster has none: the draining are not left out."""
    async with run_replicas("ab") as [a, b]:
        snapshot = chat(view(a, Health.UNREADY), view(b, Health.DRAINING))
        async with run_lab(dialect, snapshot, static=with_default_panic) as lab:
            assert await lab.ask_whom(6) == {"a": 3, "b": 3}


async def test_an_assignment_that_is_merely_gone_need_not_empty_its_cluster(dialect: Dialect) -> None:
    """A delta Envoy keeps the endpoints of a removed one: an empty pool has to stay in the snapshot."""
    async with run_replicas("a") as [a], run_lab(dialect, chat(view(a)), static=one_cluster) as lab:
        await lab.offer(build_snapshot({Kind.EDS: []}))
        kept = await lab.list_hosts("pool_chat")
        assert kept == ({a.port: ("HEALTHY", 1)} if dialect is DELTA else {})
        await lab.offer(chat())
        assert await lab.list_hosts("pool_chat") == {}


# --- refusals and reconnects ------------------------------------------------------------------------


def build_bad(name: str, replica: Replica) -> Resource:
    """An assignment with a weight of 0, which our builder does not make."""
    message = ClusterLoadAssignment.FromString(pool(name, view(replica)).value)
    message.endpoints[0].lb_endpoints[0].load_balancing_weight.value = 0
    return read_resource(Kind.EDS, message.SerializeToString())


def two_clusters(access_log: Path) -> dict[str, Any]:
    static = one_cluster(access_log)
    static["clusters"].append(build_cluster("pool_code"))
    return static


async def test_refused_content_is_not_sent_again_and_keeps_nothing_good_back(dialect: Dialect) -> None:
    async with run_replicas("ab") as [a, b]:

        def offer(chat: Resource, weight: int) -> Snapshot:
            return build_snapshot({Kind.EDS: [chat, pool("code", view(a, weight=weight))]})

        good, bad = pool("chat", view(a)), build_bad("chat", b)
        async with run_lab(dialect, offer(good, 1), static=two_clusters) as lab:
            before = len(read_sent(lab, Kind.EDS))
            lab.hub.publish(offer(bad, 2))
            await lab.wait(lambda: len(lab.list_refusals()) == 2)
            assert all("LoadBalancingWeight" in one.detail for one in lab.list_refusals())
            await lab.wait(lambda: len(read_sent(lab, Kind.EDS)) == before + 3)
            names = read_sent(lab, Kind.EDS)[before:]
            assert sorted(names) == [["pool_chat"], ["pool_chat", "pool_code"], ["pool_code"]]
            assert (await lab.list_hosts("pool_code"))[a.port] == ("HEALTHY", 2)
            assert await lab.ask_whom(4) == {"a": 4}, "what it had"

            for weight in range(3, 20):
                lab.hub.publish(offer(bad, weight))
                await lab.wait(lambda: read_weight(lab) == weight)  # noqa: B023
            names = read_sent(lab, Kind.EDS)[before + 3 :]
            assert names == 17 * [["pool_code"]]
            assert len(lab.list_refusals()) == 2

            await lab.offer(offer(pool("chat", view(b)), 20))
            assert await lab.ask_whom(4) == {"b": 4}


def read_weight(lab: Lab) -> int:
    """The weight in the last answer that Envoy took."""
    sent = lab.list_sent(Kind.EDS)[-1]
    taken = [one for one in lab.server.log if getattr(one, "response_nonce", "") == sent.nonce]
    if not taken:
        return 0
    [resource] = sent.resources
    value = resource.value if lab.dialect is STATE_OF_THE_WORLD else resource.resource.value
    assignment = ClusterLoadAssignment.FromString(value)
    return int(assignment.endpoints[0].lb_endpoints[0].load_balancing_weight.value)


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "equal"])
async def test_after_a_restart_of_the_server_envoy_has_what_it_offers(
    dialect: Dialect, changed: bool
) -> None:
    async with run_replicas("ab") as [a, b], run_lab(dialect, chat(view(a)), static=one_cluster) as lab:
        await lab.wait(lambda: lab.hub.statistics().settled == 1)
        await lab.server.stop()
        assert await lab.ask_whom(3) == {"a": 3}, "it goes on without us"
        await lab.start_server()
        lab.hub.publish(chat(view(b if changed else a)))
        await lab.wait(lambda: bool(lab.list_sent(Kind.EDS)) and lab.hub.statistics().settled == 1)
        assert await lab.ask_whom(3) == {"b" if changed else "a": 3}
        assert read_sent(lab, Kind.EDS) == [["pool_chat"]]


# --- everything from us -----------------------------------------------------------------------------


def served(kind: Kind, message: Any, plain: dict[str, Any]) -> Resource:
    return read_resource(kind, json_format.Parse(json.dumps(plain), message).SerializeToString())


def serve_all(access_log: Path, route_to: str, timeout: str, **pools: Replica) -> Snapshot:
    """A whole gateway over xDS: clusters, endpoints, a listener and its routes."""
    listener = build_listener({"rds": {"route_config_name": "to-pools", "config_source": ADS}}, access_log)
    route = {"match": {"prefix": "/"}, "route": {"cluster": f"pool_{route_to}"}}
    routes = {"name": "to-pools", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}
    clusters = [build_cluster(f"pool_{name}", connect_timeout=timeout) for name in pools]
    return build_snapshot(
        {
            Kind.CDS: [served(Kind.CDS, Cluster(), one) for one in clusters],
            Kind.EDS: [pool(name, view(replica)) for name, replica in pools.items()],
            Kind.LDS: [served(Kind.LDS, Listener(), listener)],
            Kind.RDS: [served(Kind.RDS, RouteConfiguration(), routes)],
        }
    )


async def list_clusters(lab: Lab, state: str) -> dict[str, str]:
    """Name -> connect timeout, of the clusters in that state."""
    dump = await lab.read_admin(f"config_dump?resource=dynamic_{state}_clusters")
    found = [one["cluster"] for one in dump.get("configs", [])]
    return {one["name"]: one["connect_timeout"] for one in found}


async def test_an_envoy_with_nothing_but_its_node_id_gets_all_from_us(
    dialect: Dialect, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    async with (
        run_replicas("ab") as [a, b],
        run_lab(dialect, serve_all(log, "chat", "5s", chat=a)) as lab,
    ):
        lab.use_access_log(log)
        assert await lab.ask_whom(3) == {"a": 3}
        await lab.offer(serve_all(log, "chat", "6s", chat=a))
        assert await list_clusters(lab, "active") == {"pool_chat": "6s"}
        assert await list_clusters(lab, "warming") == {}
        assert await lab.read_stat("cluster.pool_chat.init_fetch_timeout") == 0
        await lab.offer(serve_all(log, "chat", "6s", chat=a, code=b))
        assert await list_clusters(lab, "active") == {"pool_chat": "6s", "pool_code": "6s"}
        assert lab.list_refusals() == []


async def test_no_request_is_lost_while_routes_move_to_another_cluster(
    dialect: Dialect, tmp_path: Path
) -> None:
    """Make before break: the other cluster warms, the routes move, the first cluster goes."""
    log = tmp_path / "access.log"
    async with (
        run_replicas("ab") as [a, b],
        run_lab(dialect, serve_all(log, "chat", "5s", chat=a)) as lab,
    ):
        lab.use_access_log(log)
        moved = asyncio.Event()

        async def keep_asking() -> Counter[str]:
            answered: Counter[str] = Counter()
            while not moved.is_set():
                answered += await lab.ask_whom(5)
            return answered

        asking = asyncio.create_task(keep_asking())
        for turn in range(6):
            name, replica = [("code", b), ("chat", a)][turn % 2]
            await lab.offer(serve_all(log, name, "5s", **{name: replica}))
            assert await list_clusters(lab, "active") == {f"pool_{name}": "5s"}
        moved.set()
        assert set(await asking) <= {"a", "b"}
        assert await lab.ask_whom(3) == {"a": 3}


async def wait_warming(lab: Lab, cluster: str) -> None:
    async with asyncio.timeout(10):
        while cluster not in await list_clusters(lab, "warming"):
            await asyncio.sleep(0.02)


async def test_routes_do_not_move_to_a_cluster_that_is_still_warming(
    dialect: Dialect, tmp_path: Path
) -> None:
    """Envoy says that it has the clusters only when they are warm, and the routes wait for that."""
    log = tmp_path / "access.log"
    async with run_replicas("ab") as [a, b], run_lab(dialect, serve_all(log, "chat", "5s", chat=a)) as lab:
        lab.use_access_log(log)
        await lab.wait(lambda: lab.hub.statistics().settled == 1)
        lab.server.withhold(Kind.EDS)
        lab.hub.publish(serve_all(log, "code", "5s", code=b))
        await wait_warming(lab, "pool_code")
        assert await lab.ask_whom(10) == {"a": 10}
        lab.server.release()
        await lab.wait(lambda: lab.hub.statistics().settled == 1)
        assert await lab.ask_whom(3) == {"b": 3}
        assert await list_clusters(lab, "active") == {"pool_code": "5s"}


async def test_a_changed_cluster_gets_warm_on_the_stream_after_the_one_that_broke(
    dialect: Dialect, tmp_path: Path
) -> None:
    """The server dies between a cluster and its endpoints, and comes back with nothing changed."""
    log = tmp_path / "access.log"
    async with run_replicas("a") as [a], run_lab(dialect, serve_all(log, "chat", "5s", chat=a)) as lab:
        lab.use_access_log(log)
        await lab.wait(lambda: lab.hub.statistics().settled == 1)
        changed = serve_all(log, "chat", "6s", chat=a)
        lab.server.withhold(Kind.EDS)
        lab.hub.publish(changed)
        await wait_warming(lab, "pool_chat")
        await lab.server.stop()
        await lab.start_server()
        lab.hub.publish(changed)
        await lab.wait(lambda: bool(lab.list_sent(Kind.EDS)) and lab.hub.statistics().settled == 1)
        assert await list_clusters(lab, "active") == {"pool_chat": "6s"}
        assert await lab.read_stat("cluster.pool_chat.init_fetch_timeout") == 0
        assert await lab.ask_whom(3) == {"a": 3}


async def test_what_went_away_while_nobody_served_goes_when_somebody_does(
    dialect: Dialect, tmp_path: Path
) -> None:
    """A reconnect tells what Envoy holds, and the answer has to name what is not there any more."""
    log = tmp_path / "access.log"
    async with (
        run_replicas("ab") as [a, b],
        run_lab(dialect, serve_all(log, "chat", "5s", chat=a, code=b)) as lab,
    ):
        lab.use_access_log(log)
        await lab.wait(lambda: lab.hub.statistics().settled == 1)
        assert set(await list_clusters(lab, "active")) == {"pool_chat", "pool_code"}
        await lab.server.stop()
        assert await lab.ask_whom(3) == {"a": 3}
        await lab.start_server()
        lab.hub.publish(serve_all(log, "code", "5s", code=b))
        await lab.wait(lambda: bool(lab.list_sent(Kind.CDS)) and lab.hub.statistics().settled == 1)
        assert await lab.ask_whom(3) == {"b": 3}
        assert set(await list_clusters(lab, "active")) == {"pool_code"}
        assert lab.list_refusals() == []
