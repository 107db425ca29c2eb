"""A request is told the same by both protocols: by the delivery filter's stream, and by ext_authz.

What may differ, and nothing else: what would wait is let on; the operation's id, of which ext_authz has none;
the second within the span of `Retry-After`.
"""

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue
from envoy.service.auth.v3.external_auth_pb2 import CheckRequest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from hypothesis import event, given, settings
from hypothesis import strategies as st

from envoy_ext.adapters import extauthz
from envoy_ext.adapters import headers as h
from envoy_ext.adapters.extproc_delivery import DeliverySession
from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain import names
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.boundaries import DataClass
from envoy_ext.domain.callers import CallerRules, KnownCaller, Rights
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId, ReplicaId
from envoy_ext.domain.ladder import Ladder, Template
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.services.unrecorded import Unrecorded
from tests.support.callers import build_caller_rules, build_entry, make_key
from tests.support.keyed import ask, let_tasks_run
from tests.support.sidecar import DELTA, MODEL, POOL, SSE, Sidecar

CHAT = "/v1/chat/completions"
CLASSES = TrafficClasses(
    [
        TrafficClass("soft", ladder=Ladder((Template("later"),))),
        TrafficClass("free", unrecorded=True),
        TrafficClass("alarm", priority=1),
    ]
)
DATA_CLASSES = (
    DataClass("public", frozenset({"local", "external:p"})),
    DataClass("none", frozenset({"site"})),
)
CALLERS = build_caller_rules(
    build_entry("alice"),
    build_entry(
        "bob",
        rights=Rights(frozenset({MODEL}), frozenset(), classes=("soft", "free"), data_classes=("public",)),
    ),
    build_entry("late", expires_at=1.0),
    trusted_header="x-caller",
)


class Down(MemoryJournal):
    """A store that takes nothing and tells nothing."""

    down = False

    async def begin(self, *args: Any, **more: Any) -> Any:
        self._fail()
        return await super().begin(*args, **more)

    async def append(self, *args: Any, **more: Any) -> Any:
        self._fail()
        return await super().append(*args, **more)

    async def get(self, operation_id: OperationId) -> Operation | None:
        self._fail()
        return await super().get(operation_id)

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        self._fail()
        return await super().find_by_key(caller, path, key_hash)

    def _fail(self) -> None:
        if self.down:
            raise JournalUnavailable("away")


@dataclass(frozen=True)
class Asked:
    """One request on the wire."""

    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = b'{"model": "llama-3.1-8b"}'
    method: str = "POST"
    path: str = CHAT
    peer: str = "10.0.0.1"

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        length = [] if self.body is None else [("content-length", str(len(self.body)))]
        own = [(":method", self.method), (":path", self.path), ("x-request-id", "req-1")]
        return [*own, *length, *self.headers]


@dataclass(frozen=True)
class World:
    """How the gateway is when it is asked."""

    callers: CallerRules | None = None
    length: int = 1
    """Of the line."""
    taken: int = 0
    """How many of the first pool's one slot and of its line are taken."""
    empty: bool = False
    draining: bool = False
    down: bool = False
    earlier: str = ""
    """What has become of an operation under the key `k`."""


class Outbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, response: bytes) -> None:
        self.sent.append(ProcessingResponse.FromString(response))

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        raise AssertionError("broken off")


@dataclass(frozen=True)
class Told:
    """What a client is told; or that it is let on."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    pool: str = ""


def is_pool(option: Any) -> bool:
    return bool(option.header.key == names.POOL)


def read_told(status: int, headers: dict[str, str], body: bytes) -> Told:
    kept = {
        name: value for name, value in headers.items() if name not in ("x-operation-id", "x-attempt-count")
    }
    if "retry-after" in kept:
        assert 1 <= int(kept["retry-after"]) <= 30
        kept["retry-after"] = "some"
    error = {} if status == 200 else {**json.loads(body)["error"], "operation_id": None}
    return Told(status, kept, error)


async def build_world(world: World) -> Sidecar:
    journal = Down()
    sidecar = Sidecar(
        journal=journal,
        callers=world.callers,
        others={"branch": "local", "partner": "external:p"},
        data_classes=DATA_CLASSES,
        replicas=("a",),
        concurrency=1,
        queue_policy=QueuePolicy(world.length, CLASSES),
        unrecorded=Unrecorded(CLASSES, lambda: journal.down),
    )
    for number in range(world.taken):
        sidecar.arrivals.arrive(sidecar.build_arrival(request_id=f"other-{number}"), _Nowhere())
    if world.earlier:
        credential = h.read_caller({"authorization": KEYS[0]})
        caller = credential if world.callers is None else KnownCaller("alice").id
        client = await ask(
            sidecar,
            request_id="req-0",
            caller=caller,
            path=CHAT,
            body=b'{"model": "partner"}',
            data_class="public",
        )
        if world.earlier != "runs":
            await client.start()
            await client.begin_answer(DELTA, SSE)
            await client.leave()
    await let_tasks_run()
    if world.empty:
        sidecar.fleet.drain(ReplicaId("a"), 60.0)
    if world.draining:
        sidecar.exchanges.start_draining()
    journal.down = world.down
    await let_tasks_run()
    return sidecar


class _Nowhere:
    def send(self, reply: object) -> None:
        pass


async def tell_by_delivery(sidecar: Sidecar, asked: Asked) -> Told:
    outbox = Outbox()
    session = DeliverySession(sidecar.arrivals, outbox, lambda: "made", lambda seconds: None)
    message = ProcessingRequest()
    message.request_headers.end_of_stream = asked.body is None
    for name, value in asked.all_headers:
        raw = value.encode("utf-8", "surrogateescape")
        message.request_headers.headers.headers.append(HeaderValue(key=name, raw_value=raw))
    attributes = message.attributes["envoy.filters.http.ext_proc"]
    attributes.fields["source.address"].string_value = f"{asked.peer}:4711"
    session.receive(message)
    if asked.body is not None and not any(one.HasField("immediate_response") for one in outbox.sent):
        body = ProcessingRequest()
        body.request_body.body = asked.body
        body.request_body.end_of_stream = True
        session.receive(body)
    await let_tasks_run()
    last = outbox.sent[-1]
    if last.HasField("immediate_response"):
        immediate = last.immediate_response
        headers = {one.header.key: one.header.raw_value.decode() for one in immediate.headers.set_headers}
        told = read_told(immediate.status.code, headers, immediate.body)
    else:
        kind = last.request_headers if last.HasField("request_headers") else last.request_body
        changed = kind.response.header_mutation.set_headers
        told = Told(
            pool={one.header.key: one.header.raw_value.decode() for one in changed}.get(names.POOL, "")
        )
    session.closed()
    await let_tasks_run()
    return told


async def tell_by_check(sidecar: Sidecar, asked: Asked, *, raw: bool = True, whole: bool = True) -> Told:
    message = CheckRequest()
    http = message.attributes.request.http
    http.method, http.path = asked.method, asked.path
    message.attributes.source.address.socket_address.address = asked.peer
    headers = [*asked.all_headers]
    if asked.body and whole:
        http.raw_body = asked.body
        headers.append(("x-envoy-auth-partial-body", "false"))
    if raw:
        for name, value in headers:
            data = value.encode("utf-8", "surrogateescape")
            http.header_map.headers.append(HeaderValue(key=name, raw_value=data))
    else:
        for name, value in headers:
            http.headers[name] = f"{http.headers[name]},{value}" if name in http.headers else value
    answer = await extauthz.check(sidecar.authz, message, lambda: "made")
    if answer.HasField("denied_response"):
        denied = answer.denied_response
        given = {one.header.key: one.header.value for one in denied.headers}
        return read_told(denied.status.code, given, denied.body.encode())
    return Told(
        pool={one.header.key: one.header.value for one in answer.ok_response.headers}.get(names.POOL, "")
    )


async def compare(world: World, asked: Asked) -> tuple[Told, Told]:
    """Asked first by ext_authz, twice, since that takes nothing."""
    sidecar = await build_world(world)
    first, again = [await tell_by_check(sidecar, asked) for _ in range(2)]
    assert first == again
    by_delivery = await tell_by_delivery(sidecar, asked)
    assert sidecar.watcher.bugs == []
    return first, by_delivery


KEYS = [f"Bearer {make_key(name)}" for name in ("alice", "bob", "late", "nobody")]
header = st.one_of(
    st.tuples(st.just("authorization"), st.sampled_from([*KEYS, "Basic x", "Bearer", ""])),
    st.tuples(st.sampled_from(["x-api-key", "api-key"]), st.sampled_from([make_key("alice"), "", "\udcff"])),
    st.tuples(st.just("x-caller"), st.sampled_from(["alice", "bob", "late", "", "nobody"])),
    st.tuples(st.just("x-request-class"), st.sampled_from(["soft", "free", "alarm", "what", ""])),
    st.tuples(st.just("x-data-class"), st.sampled_from(["default", "public", "none", "what", "", "a,b"])),
    st.tuples(st.just("x-request-deadline"), st.sampled_from(["5", "0", "-1", "1e3", "soon", ""])),
    st.tuples(st.just("idempotency-key"), st.sampled_from(["k", "other", "", "\u00e4", "x" * 300])),
    st.tuples(st.just("content-encoding"), st.sampled_from(["identity", "gzip", "br"])),
    st.tuples(st.just(names.MESH_ATTEMPT), st.sampled_from(["1", "2", "x"])),
    st.tuples(st.sampled_from(["x-envoy-ext-pool", "x-envoy-ext-exchange"]), st.just("partner")),
)
body = st.sampled_from(
    [
        *(json.dumps({"model": one}).encode() for one in (MODEL, "branch", "partner", "nowhere", "")),
        *(b"", b"{", b"[]", b"\xff", b'{"model": 7}', b'{"stream": 1, "model": "branch"}'),
        json.dumps({"model": MODEL, "stream": True, "messages": [], "n": 2}).encode(),
        b'{"model": "branch", "x": "' + b"x" * (1 << 20) + b'"}',
    ]
)
place = st.one_of(
    st.tuples(
        st.just("POST"),
        st.sampled_from([CHAT, CHAT + "?api_key=x", "/v1/embeddings", "/generate", "/v1/none", "/v1/models"]),
        body,
    ),
    st.tuples(
        st.just("GET"),
        st.sampled_from(["/v1/models", f"/v1/models/{MODEL}", "/v1/models/partner", "/v1/models/x", CHAT]),
        st.none(),
    ),
)


plausible = st.fixed_dictionaries(
    {},
    optional={
        "x-request-class": st.sampled_from(["soft", "free", "alarm"]),
        "x-data-class": st.sampled_from(["default", "public"]),
        "x-request-deadline": st.sampled_from(["5", "40"]),
        "idempotency-key": st.sampled_from(["k", "other"]),
        names.MESH_ATTEMPT: st.just("2"),
    },
)


@st.composite
def asked_anything(draw: st.DrawFn) -> Asked:
    """Mostly requests that somebody could mean, since a mistake hides all that would be decided behind it."""
    peer = draw(st.sampled_from(["10.0.0.1", "127.0.0.1"]))
    if draw(st.integers(0, 3)) == 0:
        method, path, sent = draw(place)
        return Asked(tuple(draw(st.lists(header, max_size=4))), sent, method, path, peer)
    key = draw(st.sampled_from([KEYS[0], KEYS[0], KEYS[1]]))
    model = draw(st.sampled_from([MODEL, MODEL, MODEL, "branch", "partner"]))
    headers = (("authorization", key), *draw(plausible).items())
    return Asked(headers, json.dumps({"model": model}).encode(), peer=peer)


worlds = st.builds(
    World,
    callers=st.sampled_from([None, CALLERS]),
    length=st.integers(0, 1),
    taken=st.integers(0, 2),
    empty=st.integers(0, 4).map(lambda number: number == 4),
    draining=st.integers(0, 9).map(lambda number: number == 9),
    down=st.integers(0, 4).map(lambda number: number == 4),
    earlier=st.sampled_from(["", "", "runs", "incomplete"]),
)


@settings(max_examples=300, deadline=None)
@given(world=worlds, asked=asked_anything())
def test_both_say_the_same_of_every_request(world: World, asked: Asked) -> None:
    by_check, by_delivery = asyncio.run(compare(world, asked))
    event(str(by_delivery.error.get("code", by_delivery.status)))
    if by_delivery == Told():  # it waits
        assert by_check.status == 0
    else:
        assert by_check == by_delivery


OWN, BOB = [("authorization", key) for key in KEYS[:2]]
ONE_MODEL = Asked((), None, "GET", f"/v1/models/{MODEL}")
TO_BRANCH = b'{"model": "branch"}'
TO_PARTNER = Asked((OWN, ("x-data-class", "public"), ("idempotency-key", "k")), b'{"model": "partner"}')


@pytest.mark.parametrize(
    ("world", "asked", "status", "code"),
    [
        (World(), Asked(), 0, POOL),
        (World(taken=1), Asked(), 0, "waits"),
        (World(taken=2), Asked(), 429, "queue_full"),
        (World(length=0, taken=1), Asked((("x-request-class", "soft"),)), 200, None),
        (World(taken=1), Asked((("x-request-deadline", "0.000000001"),)), 503, "queue_deadline_exceeded"),
        (World(empty=True), Asked(), 503, "no_ready_replica"),
        (
            World(empty=True),
            ONE_MODEL,
            503,
            "no_ready_replica",
        ),
        (World(taken=2), ONE_MODEL, 0, POOL),
        (World(draining=True), Asked(), 503, "draining"),
        (World(down=True), Asked(), 503, "upstream_unavailable"),
        (World(down=True), Asked((("x-request-class", "free"),)), 0, POOL),
        (World(down=True), Asked((("idempotency-key", "k"),)), 503, "upstream_unavailable"),
        (World(earlier="runs"), TO_PARTNER, 409, "operation_in_progress"),
        (World(earlier="incomplete"), TO_PARTNER, 409, "operation_incomplete"),
        (
            World(earlier="runs"),
            replace(TO_PARTNER, body=b'{"model": "branch"}'),
            422,
            "idempotency_key_reused",
        ),
        (World(CALLERS, earlier="runs"), TO_PARTNER, 409, "operation_in_progress"),
        (World(), Asked(body=b'{"model": "partner"}'), 403, "data_class_forbidden"),
        (World(CALLERS), Asked(), 401, "invalid_api_key"),
        (World(CALLERS), Asked((OWN,)), 0, POOL),
        (World(CALLERS), Asked((("x-caller", "alice"),), peer="127.0.0.1"), 0, POOL),
        (World(CALLERS), Asked((("x-caller", "alice"),)), 401, "invalid_api_key"),
        (World(CALLERS), Asked((OWN, BOB)), 401, "invalid_api_key"),
        (
            World(CALLERS),
            Asked((BOB,), TO_BRANCH),
            404,
            "invalid_request",
        ),
        (
            World(CALLERS),
            Asked((BOB, ("x-request-class", "alarm"))),
            403,
            "permission_denied",
        ),
        (World(CALLERS), Asked((BOB,), None, "GET", "/v1/models"), 200, None),
    ],
    ids=lambda value: None if isinstance(value, World | Asked) else str(value),
)
async def test_each_of_their_words_is_said_by_both(
    world: World, asked: Asked, status: int, code: str | None
) -> None:
    by_check, by_delivery = await compare(world, asked)
    if code == "waits":
        assert (by_delivery, by_check.pool) == (Told(), POOL)
        return
    assert by_check == by_delivery
    assert (by_check.status, by_check.error.get("code") or by_check.pool or None) == (status, code)
