"""For every configuration and every request, no attempt starts at a pool outside the request's boundaries."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain import step
from envoy_ext.domain.boundaries import FORBIDDEN, DataClass
from envoy_ext.domain.events import DeliveryClosed
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.notes import BoundaryHeld, RequestRefused
from tests.support.sidecar import MODEL, POOL, Sent, Sidecar

BOUNDARIES = ["local", "site", "external:a", "external:b"]
OTHERS = ["branch", "partner"]
boundary = st.sampled_from(BOUNDARIES)


def build_body(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()


async def send(
    sidecar: Sidecar, model: str, data_class: str | None, routed_to: str | None = None
) -> tuple[Sent, Sent]:
    """One request, and one attempt of it if it goes on; the client's end and the attempt's."""
    client, hop = Sent(), Sent()
    arrival = sidecar.build_arrival(data_class=data_class, body=build_body(model))
    delivery = sidecar.arrivals.arrive(arrival, client)
    await sidecar.settle()
    for reply in client.replies:
        if isinstance(reply, step.ForwardRequest):
            joined = sidecar.exchanges.join(reply.exchange_id, hop)
            assert joined is not None
            pool = PoolName(reply.pool if routed_to is None else routed_to)
            sidecar.exchanges.arrive_attempt(*joined, pool)
    await sidecar.settle()
    delivery.receive(DeliveryClosed())
    await sidecar.settle()
    return client, hop


def read_code(client: Sent) -> str | None:
    return next((one.error.code for one in client.replies if isinstance(one, step.RespondLocally)), None)


@settings(max_examples=60, deadline=None)
@given(
    first=boundary,
    others=st.fixed_dictionaries(dict.fromkeys(OTHERS, boundary)),
    classes=st.dictionaries(
        st.sampled_from(["default", "public", "health"]), st.frozensets(boundary, min_size=1)
    ),
    model=st.sampled_from([MODEL, *OTHERS]),
    data_class=st.none() | st.sampled_from(["default", "public", "health", "Public"]),
    routed_to=st.none() | st.sampled_from([str(POOL), *OTHERS]),
)
def test_no_attempt_starts_outside(
    first: str,
    others: dict[str, str],
    classes: dict[str, frozenset[str]],
    model: str,
    data_class: str | None,
    routed_to: str | None,
) -> None:
    """Nor where Envoy would route to another pool than the one that the request was let in for."""

    async def play() -> tuple[Sent, Sent, Sidecar]:
        sidecar = Sidecar(
            boundary=first,
            others=others,
            data_classes=tuple(DataClass(*one) for one in classes.items()),
            replicas=("a",),
        )
        return *await send(sidecar, model, data_class, routed_to), sidecar

    client, hop, sidecar = asyncio.run(play())
    places = {str(POOL): first} | others
    asked = places[str(POOL) if model == MODEL else model]
    started = [reply for reply in hop.replies if isinstance(reply, step.StartAttempt)]
    known = {"default": frozenset({"local"})} | classes
    if data_class is not None and data_class not in known:
        assert (started, read_code(client)) == ([], "invalid_request")
        return
    allowed = known[data_class or "default"]
    if asked not in allowed:
        assert hop.replies == []
        assert read_code(client) == FORBIDDEN
    elif places[routed_to or (str(POOL) if model == MODEL else model)] not in allowed:
        assert (started, [one.code for one in hop.replies if isinstance(one, step.RefuseAttempt)]) == (
            [],
            [FORBIDDEN],
        )
    else:
        assert len(started) == 1
    held = [note for note in sidecar.watcher.notes if isinstance(note, BoundaryHeld)]
    assert len(held) == (0 if started else 1)


async def test_what_is_held_is_counted_for_the_pool_that_was_not_reached_and_named_by_ids() -> None:
    sidecar = Sidecar(others={"partner": "external:p"})
    client, _ = await send(sidecar, "partner", None)
    (held,) = [note for note in sidecar.watcher.notes if isinstance(note, BoundaryHeld)]
    assert held == BoundaryHeld(PoolName("partner"), "req-1", None, "default")
    assert not any(isinstance(note, RequestRefused) for note in sidecar.watcher.notes)
    assert [reply.error.http_status for reply in client.replies] == [403]  # type: ignore[union-attr]
    assert await sidecar.journal.list_recent(10) == []


async def test_an_unknown_class_is_refused_by_the_headers_name_and_with_those_that_there_are() -> None:
    sidecar = Sidecar(data_classes=(DataClass("public"),))
    client, _ = await send(sidecar, MODEL, "secret-word")
    (reply,) = client.replies
    assert isinstance(reply, step.RespondLocally)
    assert reply.error.http_status == 400
    assert (
        reply.error.message
        == "x-data-class: is not a class that this gateway knows; use one of default, public"
    )


async def test_an_attempt_that_the_gate_holds_is_recorded_with_its_operation() -> None:
    sidecar = Sidecar(others={"partner": "external:p"})
    await send(sidecar, MODEL, None, routed_to="partner")
    operation = await sidecar.operation()
    (held,) = [note for note in sidecar.watcher.notes if isinstance(note, BoundaryHeld)]
    assert (held.operation_id, held.pool) == (operation.operation_id, "partner")
    assert [attempt.started_at for attempt in operation.attempts] == []
