"""What the services do with a ladder: where a request goes, what is recorded, what the client is given."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain import step
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.boundaries import DataClass
from envoy_ext.domain.callers import Rights
from envoy_ext.domain.events import DeliveryClosed, DrainExpired
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.ladder import (
    HandOff,
    Ladder,
    OtherPool,
    Rung,
    ShortenContext,
    ShortenGeneration,
    Template,
)
from envoy_ext.domain.notes import BoundaryHeld, HandOffFailed, RequestDegraded, RequestRefused
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import Ending, OperationState, RungName
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.ports import HandedOver
from envoy_ext.services.deliveries import Delivery
from tests.support.sidecar import MODEL, POOL, Sent, Sidecar

SMALL, FAR = PoolName("small"), PoolName("far")
TO_SMALL, TO_FAR, TEXT = OtherPool(SMALL, "small"), OtherPool(FAR, "far"), Template("later")
PERSON = HandOff("http://person.example/hook", "a person", 2.0)
SHORTER = ShortenGeneration(8)
TURNS = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]
WORDS = {"model": MODEL, "messages": TURNS, "max_tokens": 99}


class Person:
    """`ports.HandOffs` that says what it is told to, when it is told to."""

    def __init__(self, *, takes: bool = True) -> None:
        self.heard: list[HandedOver] = []
        self.takes = takes
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def hand_over(self, url: str, request: HandedOver, timeout_s: float) -> bool:
        assert (url, timeout_s) == (PERSON.webhook, PERSON.timeout_s)
        self.heard.append(request)
        await self.may_answer.wait()
        return self.takes


def build(*rungs: Rung, side_effects: bool = False, length: int = 0, **options: Any) -> Sidecar:
    """One slot in the first pool, and whoever is of the class `soft` may step down."""
    soft = TrafficClass("soft", max_wait_s=0.05 if length else 30.0, ladder=Ladder(rungs, side_effects))
    return Sidecar(
        concurrency=1,
        queue_policy=QueuePolicy(length, TrafficClasses([soft])),
        **{"replicas": ("a",), "others": {"small": "local", "far": "external:p"}, **options},
    )


async def send(sidecar: Sidecar, request_id: str, **options: Any) -> tuple[Sent, Delivery]:
    client = Sent()
    body = json.dumps(options.pop("words", WORDS)).encode()
    arrival = sidecar.build_arrival(request_id=request_id, body=body, **{"request_class": "soft", **options})
    delivery = sidecar.arrivals.arrive(arrival, client)
    await sidecar.settle()
    return client, delivery


async def fill(sidecar: Sidecar) -> Delivery:
    """The one slot is taken."""
    client, delivery = await send(sidecar, "first", request_class=None)
    assert isinstance(client.replies[0], step.ForwardRequest)
    return delivery


def read_body(client: Sent) -> dict[str, Any]:
    (forward,) = [reply for reply in client.replies if isinstance(reply, step.ForwardRequest)]
    assert forward.changed_body is not None
    words: dict[str, Any] = json.loads(forward.changed_body)
    return words


def read_error(client: Sent) -> str:
    (reply,) = [reply for reply in client.replies if isinstance(reply, step.RespondLocally)]
    return reply.error.code


async def leave(sidecar: Sidecar, *deliveries: Delivery) -> None:
    for one in deliveries:
        one.receive(DeliveryClosed())
    await sidecar.settle()


async def test_a_pool_that_its_caller_may_not_use_is_no_rung_for_it_on_arrival_and_after_a_wait() -> None:
    own = Rights(frozenset({MODEL}), frozenset())
    for length in (0, 1):
        sidecar = build(TO_SMALL, length=length)
        first = await fill(sidecar)
        client, delivery = await send(sidecar, "req-1", rights=own)
        async with asyncio.timeout(10):
            while not any(isinstance(reply, step.RespondLocally) for reply in client.replies):
                await asyncio.sleep(0.01)
        assert read_error(client) == ("queue_deadline_exceeded" if length else "queue_full")
        assert not any(isinstance(note, BoundaryHeld) for note in sidecar.watcher.notes)
        await leave(sidecar, first, delivery)


async def test_another_pool_is_asked_by_its_models_name_and_all_else_is_the_clients() -> None:
    sidecar = build(TO_SMALL, TEXT)
    first = await fill(sidecar)
    client, delivery = await send(sidecar, "req-1", key="k")
    assert read_body(client) == {**WORDS, "model": "small"}
    operation = await sidecar.operation("req-1")
    assert (operation.pool, operation.model, operation.degraded) == (SMALL, MODEL, (RungName.POOL,))
    plain, again = await send(sidecar, "req-2", key="other", request_class=None)
    assert read_error(plain) == "queue_full"
    # The key stands for the client's own bytes.
    (forwarded,) = [one for one in client.replies if isinstance(one, step.ForwardRequest)]
    assert forwarded.pool == SMALL
    repeat, third = await send(sidecar, "req-3", key="k")
    assert read_error(repeat) == "operation_in_progress"
    noted = [note for note in sidecar.watcher.notes if isinstance(note, RequestDegraded)]
    assert noted == [RequestDegraded(SMALL, (RungName.POOL,))]
    await leave(sidecar, first, delivery, again, third)
    assert sidecar.queues.idle


async def test_no_replica_leads_away_too() -> None:
    sidecar = build(SHORTER, TO_SMALL, replicas=())
    client, _ = await send(sidecar, "req-1")
    assert read_body(client) == {**WORDS, "model": "small"}
    refused, _ = await send(sidecar, "req-2", request_class=None)
    assert read_error(refused) == "no_ready_replica"


async def test_a_pool_without_room_is_passed_over() -> None:
    sidecar = build(TO_SMALL, TEXT)
    await fill(sidecar)
    await send(sidecar, "req-1")
    client, _ = await send(sidecar, "req-2")
    assert [type(reply) for reply in client.replies] == [step.HoldRequest, step.AnswerHere]


async def test_a_pool_outside_is_never_a_way_out_and_says_so_where_it_is_the_last() -> None:
    sidecar = build(TO_FAR)
    await fill(sidecar)
    client, _ = await send(sidecar, "req-1")
    assert read_error(client) == "data_class_forbidden"
    held = [note for note in sidecar.watcher.notes if isinstance(note, BoundaryHeld)]
    assert held == [BoundaryHeld(FAR, "req-1", None, "default")]
    assert not any(isinstance(note, RequestRefused) for note in sidecar.watcher.notes)
    inside = build(TO_FAR, data_classes=(DataClass("public", frozenset({"local", "external:p"})),))
    await fill(inside)
    client, _ = await send(inside, "req-1", data_class="public")
    assert read_body(client)["model"] == "far"


async def test_a_text_is_a_refusal_in_kind_words_and_its_key_may_run_again() -> None:
    sidecar = build(TEXT)
    first = await fill(sidecar)
    client, delivery = await send(sidecar, "req-1", key="k")
    (answer,) = [reply for reply in client.replies if isinstance(reply, step.AnswerHere)]
    assert json.loads(answer.data)["choices"][0]["message"]["content"] == "later"
    await leave(sidecar, delivery)
    operation = await sidecar.operation("req-1")
    assert (operation.state, operation.ending) == (OperationState.FAILED, Ending.REFUSED)
    assert (operation.error_code, operation.status, operation.degraded) == (
        *("queue_full", 200),
        (RungName.TEMPLATE,),
    )
    await leave(sidecar, first)
    client, _ = await send(sidecar, "req-2", key="k")
    assert any(isinstance(reply, step.ForwardRequest) for reply in client.replies)


async def test_nobody_is_told_before_the_operation_is_recorded() -> None:
    person = Person()
    sidecar = build(PERSON, hand_offs=person)
    await fill(sidecar)
    began: list[bool] = []
    begin = sidecar.journal.begin

    async def begin_slowly(*what: Any) -> Any:
        for _ in range(20):
            await asyncio.sleep(0)
        return await begin(*what)

    sidecar.journal.begin = begin_slowly  # type: ignore[method-assign]
    taken = person.hand_over

    async def look(url: str, request: HandedOver, timeout_s: float) -> bool:
        began.append(await sidecar.journal.get(request.operation_id) is not None)
        return await taken(url, request, timeout_s)

    person.hand_over = look  # type: ignore[method-assign]
    client, _ = await send(sidecar, "req-1")
    assert began == [True]
    operation = await sidecar.operation("req-1")
    assert (operation.state, operation.degraded) == (OperationState.COMPLETED, (RungName.HAND_OFF,))
    assert isinstance(client.replies[-1], step.AnswerHere)
    (told,) = person.heard
    assert (told.request_class, told.code, told.body_sha256) == ("soft", "queue_full", operation.body_sha256)


async def test_where_nobody_takes_it_the_next_rung_holds() -> None:
    sidecar = build(PERSON, TEXT, hand_offs=Person(takes=False))
    await fill(sidecar)
    client, _ = await send(sidecar, "req-1")
    operation = await sidecar.operation("req-1")
    assert operation.degraded == (RungName.TEMPLATE,)
    assert HandOffFailed(operation.operation_id, POOL) in sidecar.watcher.notes
    nobody = build(PERSON, hand_offs=Person(takes=False))
    await fill(nobody)
    client, _ = await send(nobody, "req-1")
    assert read_error(client) == "queue_full"


async def test_a_client_that_leaves_while_a_person_is_asked_is_given_nothing() -> None:
    person = Person()
    person.may_answer.clear()
    sidecar = build(PERSON, hand_offs=person)
    first = await fill(sidecar)
    client = Sent()
    delivery = sidecar.arrivals.arrive(sidecar.build_arrival(request_class="soft"), client)
    async with asyncio.timeout(5):
        while not person.heard:
            await asyncio.sleep(0)
    delivery.receive(DeliveryClosed())
    person.may_answer.set()
    operation = await sidecar.operation()
    assert operation.state is OperationState.CANCELLED
    assert not any(isinstance(reply, step.AnswerHere) for reply in client.replies)
    await leave(sidecar, first)
    assert sidecar.queues.idle


async def test_a_wait_in_vain_goes_on_in_another_pools_free_slot() -> None:
    sidecar = build(TO_SMALL, length=4)
    first = await fill(sidecar)
    client, delivery = await send(sidecar, "req-1")
    assert [type(reply) for reply in client.replies] == [step.HoldRequest]
    async with asyncio.timeout(5):
        while not any(isinstance(reply, step.ForwardRequest) for reply in client.replies):
            await asyncio.sleep(0.01)
    assert read_body(client)["model"] == "small"
    assert not sidecar.queues.has_room(SMALL), "its slot there is promised"
    (forward,) = [reply for reply in client.replies if isinstance(reply, step.ForwardRequest)]
    hop = Sent()
    joined = sidecar.exchanges.join(forward.exchange_id, hop)
    assert joined is not None
    sidecar.exchanges.arrive_attempt(*joined, SMALL)
    operation = await sidecar.operation("req-1")
    assert (operation.pool, operation.degraded) == (SMALL, (RungName.POOL,))
    (start,) = [reply for reply in hop.replies if isinstance(reply, step.StartAttempt)]
    assert start.target is not None
    assert start.target.replica == "small-a"
    await leave(sidecar, first, delivery)


async def test_who_waits_in_another_pool_is_not_sent_away_for_one_that_would_only_look_in() -> None:
    """Whoever has waited once takes a free slot there, or none: its asking costs nobody a place."""
    sidecar = build(TO_SMALL, TEXT, length=2)
    first = await fill(sidecar)
    words = {**WORDS, "model": "small"}
    _, there = await send(sidecar, "small-1", words=words, request_class=None, caller="many")
    waiting = [
        await send(sidecar, f"small-{number}", words=words, request_class=None, caller="many")
        for number in (2, 3)
    ]
    client, delivery = await send(sidecar, "req-1", caller="one")
    async with asyncio.timeout(5):
        while not any(isinstance(reply, step.AnswerHere) for reply in client.replies):
            await asyncio.sleep(0.01)
    assert [[type(reply) for reply in one.replies] for one, _ in waiting] == [[step.HoldRequest]] * 2
    assert sidecar.queues.count_waiting(SMALL) == 2
    await leave(sidecar, first, delivery, there, *(one for _, one in waiting))
    assert sidecar.queues.idle


async def test_a_slot_promised_in_another_pool_is_free_when_the_exchange_ends() -> None:
    sidecar = build(TO_SMALL, length=4)
    first = await fill(sidecar)
    client, delivery = await send(sidecar, "req-1")
    async with asyncio.timeout(5):
        while not any(isinstance(reply, step.ForwardRequest) for reply in client.replies):
            await asyncio.sleep(0.01)
    assert not sidecar.queues.has_room(SMALL)
    assert delivery.live is not None
    delivery.live.receive(DrainExpired())  # before its attempt has come
    await sidecar.settle()
    assert read_error(client) == "draining"
    assert sidecar.queues.has_room(SMALL)
    await leave(sidecar, first, delivery)
    assert sidecar.queues.idle


async def test_where_the_line_fills_less_is_asked_for_and_the_estimate_is_of_what_is_left() -> None:
    sidecar = build(SHORTER, ShortenContext(keep_turns=1), length=2)
    first = await fill(sidecar)
    _, waits = await send(sidecar, "req-1", request_class=None)
    client, delivery = await send(sidecar, "req-2")
    assert [type(reply) for reply in client.replies] == [step.HoldRequest]
    await leave(sidecar, waits, first)
    assert read_body(client) == {**WORDS, "max_tokens": 8}
    operation = await sidecar.operation("req-2")
    assert operation.degraded == (RungName.SHORTEN_GENERATION,)
    await leave(sidecar, delivery)


rung = st.sampled_from([SHORTER, ShortenContext(keep_turns=1), TO_SMALL, TO_FAR, PERSON, TEXT])


@settings(max_examples=40, deadline=None)
@given(rungs=st.lists(rung, max_size=5), length=st.sampled_from([0, 1]), busy=st.integers(0, 2))
def test_an_operation_with_side_effects_goes_as_it_is_or_not_at_all(
    rungs: list[Rung], length: int, busy: int
) -> None:
    async def play() -> tuple[Sent, Sidecar, list[Operation]]:
        person = Person()
        sidecar = build(*rungs, side_effects=True, length=length, hand_offs=person)
        others = [await send(sidecar, f"other-{number}", request_class=None) for number in range(busy)]
        client, delivery = await send(sidecar, "req-1")
        await leave(sidecar, *(one for _, one in others))
        operations = await sidecar.journal.list_recent(10)
        await leave(sidecar, delivery)
        assert person.heard == []
        return client, sidecar, list(operations)

    client, sidecar, operations = asyncio.run(play())
    assert not any(isinstance(reply, step.AnswerHere) for reply in client.replies)
    for reply in client.replies:
        if isinstance(reply, step.ForwardRequest):
            assert (reply.pool, reply.changed_body) == (POOL, None)
    assert all((one.pool, one.degraded) == (POOL, ()) for one in operations)
    assert not any(isinstance(note, RequestDegraded) for note in sidecar.watcher.notes)


PLACES = ["local", "site", "external:p"]


@settings(max_examples=60, deadline=None)
@given(
    rungs=st.lists(st.sampled_from([TO_SMALL, TO_FAR, SHORTER]), min_size=1, max_size=3, unique=True),
    places=st.fixed_dictionaries({"small": st.sampled_from(PLACES), "far": st.sampled_from(PLACES)}),
    named=st.frozensets(st.sampled_from(PLACES)),
    length=st.sampled_from([0, 1]),
    replicas=st.sampled_from([(), ("a",)]),
    data_class=st.sampled_from([None, "public"]),
)
def test_no_rung_leads_outside_the_boundaries_of_the_data(
    rungs: list[Rung],
    places: dict[str, str],
    named: frozenset[str],
    length: int,
    replicas: tuple[str, ...],
    data_class: str | None,
) -> None:
    """Whatever the ladders, the pools and the classes are, for requests on arrival and behind a wait."""
    allowed = frozenset({"local"}) | (named if data_class == "public" else frozenset())

    async def play() -> list[step.ForwardRequest]:
        public = DataClass("public", named | {"local"})
        sidecar = build(*rungs, length=length, replicas=replicas, others=places, data_classes=(public,))
        if replicas:
            await fill(sidecar)
        clients = [await send(sidecar, f"req-{n}", data_class=data_class) for n in range(4)]
        await asyncio.sleep(0.06 if length else 0)  # whoever waits has waited in vain
        await sidecar.settle()
        await leave(sidecar, *(one for _, one in clients))
        replies = [reply for client, _ in clients for reply in client.replies]
        return [reply for reply in replies if isinstance(reply, step.ForwardRequest)]

    known = {str(POOL): "local", **places}
    for forward in asyncio.run(play()):
        assert known[forward.pool] in allowed
