"""Orders over the operations port: drain and undrain, and who may give them."""

import pytest

from envoy_ext.adapters.ops_answers import ReplicaView
from envoy_ext.domain.ids import PoolName, ReplicaId
from tests.support.ops_port import OpsPort

A = ReplicaView(id=ReplicaId("10.0.0.1:8000"), pool=PoolName("chat"), url="http://10.0.0.1:8000")


@pytest.mark.parametrize(
    ("path", "order"),
    [
        ("/v1/replicas/10.0.0.1:8000/drain", ("drain", "10.0.0.1:8000", 300.0)),
        ("/v1/replicas/10.0.0.1:8000/drain?limit_s=5", ("drain", "10.0.0.1:8000", 5.0)),
        ("/v1/replicas/10.0.0.1:8000/undrain", ("undrain", "10.0.0.1:8000", None)),
    ],
)
async def test_an_order_is_taken_and_answered_with_the_replicas(
    path: str, order: tuple[str, str, float]
) -> None:
    async with OpsPort(replicas=[A]).serving() as port:
        reply = await port.ask(path, method="POST")
        assert (reply.status, port.orders) == (202, [order])
        assert [one["id"] for one in reply.json["replicas"]] == ["10.0.0.1:8000"]


async def test_an_order_for_a_replica_that_is_not_there_is_refused() -> None:
    async with OpsPort(replicas=[A]).serving() as port:
        assert (await port.ask("/v1/replicas/nobody/drain", method="POST")).status == 404


@pytest.mark.parametrize("limit", ["-1", "soon", "1e3", "99999999"])
async def test_a_limit_that_is_no_number_of_seconds_is_refused(limit: str) -> None:
    async with OpsPort(replicas=[A]).serving() as port:
        reply = await port.ask(f"/v1/replicas/10.0.0.1:8000/drain?limit_s={limit}", method="POST")
        assert (reply.status, port.orders) == (400, [])


async def test_looking_is_no_order() -> None:
    async with OpsPort(replicas=[A]).serving() as port:
        reply = await port.ask("/v1/replicas/10.0.0.1:8000/drain")
        assert (reply.status, port.orders) == (405, [])
