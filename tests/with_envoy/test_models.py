"""Several pools behind one gateway: which models there are, and who is asked about one."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.with_envoy.asking import ask
from tests.with_envoy.gateway import run_gateway
from tests.with_envoy.wire import Wired, WireEngine, answering, build_response

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODELS = {"small": ["org/small", "alias"], "large": ["large"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_pools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wired]:
    async with WireEngine() as small, WireEngine() as large:
        pools = [
            {
                "name": name,
                "models": MODELS[name],
                "engine": "vllm",
                "readiness": {"watch": False},
                "replicas": [{"url": engine.url}],
            }
            for name, engine in (("small", small), ("large", large))
        ]
        async with run_gateway(tmp_path_factory.mktemp("gateway"), "", pools=pools) as gateway:
            yield Wired(gateway, [small, large])


async def test_the_list_names_the_models_of_all_pools(two_pools: Wired) -> None:
    async with two_pools.gateway.openai() as client:
        listed = await client.models.list()

    assert [(model.id, model.object) for model in listed.data] == [
        ("org/small", "model"),
        ("alias", "model"),
        ("large", "model"),
    ]
    reply = await ask(two_pools.gateway, "/v1/models?limit=1", method="HEAD")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"", "application/json")
    assert reply.headers["x-request-id"] == reply.request_id
    assert two_pools.requests == []


@pytest.mark.parametrize(
    ("path", "engine"),
    [("/v1/models/org/small", 0), ("/v1/models/org%2Fsmall?a=b", 0), ("/v1/models/large", 1)],
)
async def test_a_model_is_asked_of_the_pool_that_serves_it(two_pools: Wired, path: str, engine: int) -> None:
    two_pools.answer_with(answering(build_response(b"{}")))

    reply = await ask(two_pools.gateway, path, method="GET")

    assert (reply.status, reply.body) == (200, b"{}")
    assert [request.line for request in two_pools.engines[engine].requests][-1] == f"GET {path} HTTP/1.1"
    assert len(two_pools.find_requests(reply.request_id)) == 1


async def test_a_model_that_nobody_serves_is_not_found(two_pools: Wired) -> None:
    reply = await ask(two_pools.gateway, "/v1/models/other", method="GET")

    assert (reply.status, reply.json["error"]["code"]) == (404, "invalid_request")
    assert two_pools.find_requests(reply.request_id) == []
