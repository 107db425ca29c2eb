"""A pool outside is asked nothing unless a class of data names it: its own log is the witness."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import Reply, ask, build_body
from tests.with_envoy.gateway import Gateway, build_config, run_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """Two pools: one at home, and one of a partner that nobody looks at, so that all it hears is clients'."""
    async with (
        SimEngine(SimOptions(name="home", models=("home",), tokens=4)) as home,
        SimEngine(SimOptions(name="partner", models=("partner",), tokens=4)) as partner,
    ):
        engines = {"home": home, "partner": partner}
        pools = [
            {
                "name": name,
                "models": [name],
                "engine": "vllm",
                "boundary": boundary,
                "readiness": {"watch": False},
                "replicas": [{"id": name, "url": engines[name].url}],
            }
            for name, boundary in (("home", "local"), ("partner", "external:partner-1"))
        ]
        classes = {"public": {"boundaries": ["local", "external:partner-1"]}}
        directory = tmp_path_factory.mktemp("gateway")
        config = build_config(engines, directory, pools=pools, data_classes=classes)
        async with run_stack(config, engines) as running:
            yield running


async def ask_for(gateway: Gateway, model: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(gateway, body=build_body(model=model), headers=named)


async def test_a_pool_outside_is_never_asked_without_a_policy_that_names_it(gateway: Gateway) -> None:
    partner = gateway.engines["partner"]
    steering = {"x_envoy_ext_pool": "partner", "x_envoy_ext_endpoint": partner.url.removeprefix("http://")}
    for headers in ({}, {"x_data_class": "default"}, steering):
        reply = await ask_for(gateway, "partner", **headers)
        assert (reply.status, reply.json["error"]["code"]) == (403, "data_class_forbidden")
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
    model: Any = await ask(gateway, "/v1/models/partner", method="GET")
    assert model.status == 403
    assert partner.find_requests() == []
    assert gateway.read_metric("envoy_ext_shed_total", pool="partner", code="data_class_forbidden") == 4


async def test_a_request_for_home_stays_there_whatever_it_says_of_itself(gateway: Gateway) -> None:
    before = len(gateway.engines["partner"].find_requests())
    reply = await ask_for(gateway, "home", x_envoy_ext_pool="partner", x_data_class="public")
    assert (reply.status, reply.dones) == (200, 1)
    assert len(gateway.engines["partner"].find_requests()) == before


async def test_a_class_that_names_the_boundary_crosses_it(gateway: Gateway) -> None:
    reply = await ask_for(gateway, "partner", x_data_class="public")
    assert (reply.status, reply.dones) == (200, 1)
    assert len(gateway.engines["partner"].find_requests(reply.request_id)) == 1


async def test_a_class_that_nobody_knows_is_refused_and_two_are_too(gateway: Gateway) -> None:
    reply = await ask_for(gateway, "home", x_data_class="publik")
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert reply.json["error"]["message"].startswith("x-data-class: ")
    async with gateway.http.post(
        gateway.url + "/v1/chat/completions",
        json=build_body(model="partner"),
        headers=[("x-data-class", "default"), ("x-data-class", "public")],
    ) as answer:
        assert answer.status == 400
        message = (await answer.json())["error"]["message"]
    assert message.startswith("x-data-class: stands more than once")


async def test_the_real_client_raises_a_permission_error(gateway: Gateway) -> None:
    async with gateway.openai() as client:
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await client.chat.completions.create(
                model="partner", messages=[{"role": "user", "content": "hi"}]
            )
    assert refused.value.code == "data_class_forbidden"
