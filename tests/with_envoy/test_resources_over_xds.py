"""An Envoy whose bootstrap is the way to a sidecar: all it serves with follows the sidecar over xDS.

In both protocols; the rendering chooses delta.
"""

import asyncio
from typing import Any

import pytest

from envoy_ext.adapters.ads import AdsSession
from envoy_ext.domain import names
from envoy_ext.wiring import doors
from envoy_ext.xds.kinds import Kind
from tests.with_envoy.asking import Reply, ask, build_body, mint_request_id, read_deltas
from tests.with_envoy.lone_envoy import LoneEnvoy, run_lone_envoy

pytestmark = pytest.mark.parametrize("api_type", ["GRPC", "DELTA_GRPC"], ids=["sotw", "delta"])

SMALL = {"max_request_bytes": "2KiB"}
CHANGES = (
    "listener_manager.listener_added",
    "listener_manager.listener_modified",
    "listener_manager.listener_removed",
    "cluster_manager.cluster_added",
    "cluster_manager.cluster_modified",
    "cluster_manager.cluster_removed",
    "http.ingress.rds.ingress.config_reload",
    "http.egress.rds.egress.config_reload",
)


async def ask_model(lone: LoneEnvoy, model: str = "chat", size: int = 0, **more: Any) -> Reply:
    """A request for a model; `size` makes its body that much larger."""
    return await ask(lone, body=build_body(model=model, user="x" * size), **more)


async def assert_answers(lone: LoneEnvoy, model: str = "chat", replicas: str = "ab") -> None:
    reply = await ask_model(lone, model)
    assert (reply.status, reply.dones, len(reply.marks)) == (200, 1, 6)
    assert reply.headers["x-sim-replica"] in replicas


async def read_changes(lone: LoneEnvoy) -> dict[str, int]:
    return {name: await lone.read_stat(name) for name in CHANGES}


async def test_all_but_the_way_to_the_sidecar_comes_from_it_and_a_request_is_answered(api_type: str) -> None:
    async with run_lone_envoy(api_type) as lone, lone.sidecar() as app:
        dump = await lone.read_admin("config_dump")
        clusters, listeners = (
            next(one for one in dump["configs"] if one["@type"].endswith(f".{kind}ConfigDump"))
            for kind in ("Clusters", "Listeners")
        )
        assert [one["cluster"]["name"] for one in clusters["static_clusters"]] == [names.CLUSTER_SIDECAR]
        assert {one["cluster"]["name"] for one in clusters["dynamic_active_clusters"]} == {
            names.CLUSTER_SIDECAR_STREAMS,
            names.CLUSTER_SIDECAR_LOGS,
            names.CLUSTER_EGRESS,
            "pool_chat",
        }
        assert "static_listeners" not in listeners
        assert {one["name"] for one in listeners["dynamic_listeners"]} == {"ingress", "egress"}
        await assert_answers(lone)
        replayed = await ask_model(lone, fault="#1:die_after_headers")
        assert (replayed.status, replayed.headers["x-attempt-count"], replayed.dones) == (200, "2", 1)
        assert dict.fromkeys(Kind, 0) == app.ads.statistics().refusals


async def test_without_a_sidecar_envoy_is_not_ready_and_takes_no_connection(api_type: str) -> None:
    async with run_lone_envoy(api_type, start=False) as lone:
        starting = asyncio.create_task(lone.start_envoy())
        await lone.wait(lambda: lone.envoy.admin_url != "" or starting.done())
        assert (await lone.read_admin("server_info"))["state"] != "LIVE"
        assert (await lone.read_admin("listeners?format=json")).get("listener_statuses", []) == []
        assert not starting.done()
        async with lone.sidecar():
            await starting
            await assert_answers(lone)


async def test_a_sidecar_that_comes_back_as_it_was_changes_nothing(api_type: str) -> None:
    """Nothing is drained, so a client's connection outlives the sidecar too."""
    async with run_lone_envoy(api_type) as lone:
        async with lone.sidecar():
            await assert_answers(lone)
        before = await read_changes(lone)
        connections = await lone.read_stat("http.ingress.downstream_cx_total")
        async with lone.sidecar():
            await assert_answers(lone)
            assert await read_changes(lone) == before
            assert await lone.read_stat("http.ingress.downstream_cx_total") == connections


async def test_while_there_is_no_sidecar_a_request_is_refused_at_once(api_type: str) -> None:
    async with run_lone_envoy(api_type) as lone:
        reply = await ask_model(lone)
        assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")
        assert lone.find_requests(reply.request_id) == []


async def test_other_limits_hold_without_a_restart_of_envoy(api_type: str) -> None:
    async with run_lone_envoy(api_type) as lone:
        async with lone.sidecar():
            assert (await ask_model(lone, size=4096)).status == 200
        async with lone.sidecar(limits=SMALL):
            await lone.wait_stat("listener_manager.listener_in_place_updated", 1)
            # A connection from before is asked to close behind the first answer that it carries.
            await ask_model(lone)
            await lone.wait_stat("http.ingress.downstream_cx_active", 0)
            reply = await ask_model(lone, size=4096)
            assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
            assert lone.find_requests(reply.request_id) == []
            await assert_answers(lone)
        async with lone.sidecar(limits={"client_write_stall": "2s"}):
            await lone.wait_stat("listener_manager.listener_modified", 3)  # both
            lone.url = f"http://{await lone.envoy.find_listener(names.LISTENER_INGRESS)}"
            assert (await ask_model(lone, size=4096)).status == 200


class HeldSession(AdsSession):
    """Hears of Envoy's requests when a test lets it."""

    held: list[tuple["HeldSession", Any]]
    release: bool

    def receive(self, message: Any) -> None:
        if self.release:
            super().receive(message)
        else:
            self.held.append((self, message))

    @classmethod
    def let_go(cls) -> None:
        cls.release = True
        for session, message in cls.held:
            session.receive(message)


async def test_streams_in_flight_outlive_a_change_of_all_that_they_pass_through(
    api_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They began with the sidecar that brings the change, before Envoy had heard of it."""
    changes = {"limits": SMALL, "retry_budget": {"percent": 50}, "engine": "llamacpp"}
    async with run_lone_envoy(api_type) as lone:
        monkeypatch.setattr(HeldSession, "held", [], raising=False)
        monkeypatch.setattr(HeldSession, "release", False, raising=False)
        monkeypatch.setattr(doors, "AdsSession", HeldSession)
        before = await read_changes(lone)
        async with lone.unheard_sidecar(**changes) as app:
            request_id = mint_request_id()
            body = build_body(model="chat")
            headers = {"x-request-id": request_id, "x-sim-fault": "slow=30"}
            async with lone.http.post(
                lone.url + "/v1/chat/completions", json=body, headers=headers
            ) as answer:
                await read_deltas(answer, 2)
                await lone.wait(lambda: bool(HeldSession.held))
                assert await read_changes(lone) == before
                HeldSession.let_go()
                await lone.wait_settled(app)
                await lone.wait_stat("listener_manager.listener_in_place_updated", 1)
                await lone.wait_stat("cluster_manager.cluster_modified", 2)
                await lone.wait_stat("cluster_manager.warming_clusters", 0)
                assert lone.find_requests(request_id)[0].ended is None, "the stream must still run"
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            (record,) = lone.find_requests(request_id)
            assert record.ended == "done"
            await assert_answers(lone)


async def test_a_pool_comes_and_another_goes(api_type: str) -> None:
    async with run_lone_envoy(api_type) as lone:
        async with lone.sidecar(pools="chat code"):
            assert {"pool_chat", "pool_code"} <= await lone.list_clusters()
            await assert_answers(lone)
            await assert_answers(lone, "code", "c")
        async with lone.sidecar(pools="code"):
            await lone.wait_stat("cluster_manager.cluster_removed", 1)
            assert "pool_chat" not in await lone.list_clusters()
            await assert_answers(lone, "code", "c")
            assert (await ask_model(lone)).status == 404
        async with lone.sidecar(pools="chat"):
            await lone.wait_stat("cluster_manager.cluster_removed", 2)
            assert "pool_code" not in await lone.list_clusters()
            await assert_answers(lone)


async def test_a_changed_cluster_of_replicas_is_warm_with_the_endpoints_it_had(api_type: str) -> None:
    async with run_lone_envoy(api_type) as lone, lone.sidecar(engine="llamacpp"):
        await lone.wait_stat("cluster_manager.cluster_modified", 1)
        await lone.wait_stat("cluster_manager.warming_clusters", 0)
        assert await lone.list_hosts("pool_chat") == {lone.engines[name].port for name in "ab"}
        assert await lone.read_stat("cluster.pool_chat.init_fetch_timeout") == 0
        await assert_answers(lone)


async def test_an_envoy_that_is_started_again_has_it_all_again(api_type: str) -> None:
    async with run_lone_envoy(api_type) as lone, lone.sidecar(pools="chat code") as app:
        await lone.envoy.stop()
        await lone.wait(lambda: app.ads.statistics().streams == 0)
        await lone.start_envoy()
        await lone.wait_settled(app)
        await assert_answers(lone)
        await assert_answers(lone, "code", "c")
