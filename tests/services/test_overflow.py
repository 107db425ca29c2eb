"""No more requests are in flight than may be, whoever sends them and whatever they would wait for."""

import asyncio

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.answer_keeping import KeepingPolicy
from envoy_ext.domain.events import DeliveryClosed
from envoy_ext.domain.notes import RequestRefused
from envoy_ext.services.deliveries import Delivery
from tests.support.sidecar import POOL, Sent, Sidecar

MOST = 3


async def ask(sidecar: Sidecar, number: int, **asked: object) -> tuple[Delivery, Sent]:
    client = Sent()
    arrival = sidecar.build_arrival(request_id=f"req-{number}", **asked)  # type: ignore[arg-type]
    delivery = sidecar.arrivals.arrive(arrival, client)
    await sidecar.settle()
    return delivery, client


def read_refusal(client: Sent) -> step.RespondLocally:
    (reply,) = client.replies
    assert isinstance(reply, step.RespondLocally)
    return reply


@pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
@pytest.mark.parametrize("concurrency", [None, 1], ids=["in prefill", "in line"])
async def test_the_first_beyond_the_limit_is_refused_and_holds_nothing(
    keyed: bool, concurrency: int | None
) -> None:
    sidecar = Sidecar(max_requests=MOST, replicas=("a",), concurrency=concurrency)
    keys = [{"key": f"key-{number}"} if keyed else {} for number in range(MOST + 2)]
    taken = [await ask(sidecar, number, **keys[number]) for number in range(MOST)]
    assert all(isinstance(client.replies[0], step.ForwardRequest | step.HoldRequest) for _, client in taken)
    waiting = sidecar.queues.count_waiting(POOL)

    _, refused = await ask(sidecar, MOST, **keys[MOST])
    error = read_refusal(refused).error
    assert (error.code, error.http_status) == ("queue_full", 429)
    assert error.retry_after_s is not None
    assert sidecar.exchanges.inflight == MOST
    assert sidecar.queues.count_waiting(POOL) == waiting, "it stands in no line"
    assert sidecar.watcher.notes.count(RequestRefused(POOL, "queue_full")) == 1
    assert len(await sidecar.journal.list_recent(100)) == MOST

    for delivery, _ in taken:
        delivery.receive(DeliveryClosed())
    async with asyncio.timeout(10):
        await sidecar.exchanges.wait_idle()
    assert sidecar.queues.idle
    _, let_in = await ask(sidecar, MOST, **keys[MOST])  # the same key: nothing of the refusal is left
    assert isinstance(let_in.replies[0], step.ForwardRequest)


async def test_a_repeat_of_what_was_answered_needs_no_place() -> None:
    sidecar = Sidecar(max_requests=MOST, keeping=KeepingPolicy())
    for number in range(MOST):
        await ask(sidecar, number, key="same" if number == 0 else None)
    _, repeat = await ask(sidecar, MOST, key="same")
    assert read_refusal(repeat).error.code == "operation_in_progress"
