"""What ext_authz alone has to tell: without the body, from headers in two forms, to what stands behind it."""

import json
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue
from envoy.service.auth.v3.external_auth_pb2 import CheckRequest

from envoy_ext.adapters import extauthz
from envoy_ext.domain import names, step
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.boundaries import DataClass
from envoy_ext.domain.callers import Rights
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.ladder import HandOff, Ladder, OtherPool, ShortenGeneration, Template
from envoy_ext.domain.notes import BoundaryHeld, RequestRefused
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from tests.support.callers import bearer, build_caller_rules, build_entry
from tests.support.sidecar import BODY, MODEL, POOL, Sent, Sidecar, play_until_delta

CHAT = "/v1/chat/completions"
CALLERS = build_caller_rules(
    build_entry("alice"), build_entry("bob", rights=Rights(frozenset({MODEL}), frozenset()))
)


def build_check(
    body: bytes = b"", *, raw: bool = True, path: str = CHAT, method: str = "POST", **headers: str
) -> Any:
    """A question as an Envoy asks it; `headers` by their names with underscores."""
    message = CheckRequest()
    http = message.attributes.request.http
    http.method, http.path, http.raw_body = method, path, body
    given = [("x-request-id", "req-9"), *((name.replace("_", "-"), value) for name, value in headers.items())]
    for name, value in given:
        if raw:
            http.header_map.headers.append(HeaderValue(key=name, raw_value=value.encode()))
        else:
            http.headers[name] = value
    return message


async def ask(sidecar: Sidecar, *body: bytes, **more: Any) -> Any:
    return await extauthz.check(sidecar.authz, build_check(*body, **more), lambda: "made")


def read_code(answer: Any) -> str | None:
    denied = answer.denied_response
    return json.loads(denied.body)["error"]["code"] if answer.HasField("denied_response") else None


# --- what is not seen -----------------------------------------------------------------------------

ALL = frozenset({"local", "external:p"})
PARTIAL = {"x_envoy_auth_partial_body": "true"}


@pytest.mark.parametrize("unseen", [{}, PARTIAL, {"content_length": "900"}], ids=str)
async def test_without_the_whole_body_nothing_is_let_on_that_could_be_for_another_pool(
    unseen: dict[str, str],
) -> None:
    part = BODY[:20] if unseen else b""
    everything = Sidecar(others={"branch": "local"})
    assert read_code(await ask(everything, part, **unseen)) is None
    outside = Sidecar(others={"partner": "external:p"}, data_classes=(DataClass("wide", ALL),))
    assert read_code(await ask(outside, part, **unseen)) == "data_class_forbidden"
    assert read_code(await ask(outside, part, x_data_class="wide", **unseen)) is None
    limited = Sidecar(callers=CALLERS)
    assert read_code(await ask(limited, part, **bearer("bob"), **unseen)) == "permission_denied"
    assert read_code(await ask(limited, part, **bearer("alice"), **unseen)) is None


async def test_of_one_pool_it_is_known_without_a_body_that_it_has_no_room() -> None:
    sidecar = Sidecar(concurrency=1, replicas=("a",), queue_policy=QueuePolicy(0, TrafficClasses(())))
    assert read_code(await ask(sidecar)) is None
    sidecar.arrivals.arrive(sidecar.build_arrival(), Sent())
    await sidecar.settle()
    assert read_code(await ask(sidecar)) == "queue_full"


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ({"x_envoy_auth_partial_body": "false"}, True),
        ({"content_length": str(len(BODY))}, True),
        ({"x_envoy_auth_partial_body": "false", "content_length": "7"}, False),
        ({}, False),
    ],
    ids=str,
)
async def test_a_body_is_read_where_it_is_known_to_be_whole(headers: dict[str, str], seen: bool) -> None:
    sidecar = Sidecar(others={"branch": "local"})
    answer = await ask(sidecar, BODY, **headers)
    pools = [one.header.value for one in answer.ok_response.headers if one.header.key == names.POOL]
    assert pools == ([POOL] if seen else [])
    broken = await ask(sidecar, BODY.replace(b"{", b"[", 1), **headers)
    assert read_code(broken) == ("invalid_request" if seen else None)


async def test_text_in_the_place_of_a_coded_body_is_not_read() -> None:
    message = build_check(content_encoding="gzip", x_envoy_auth_partial_body="false")
    message.attributes.request.http.body = "!!"
    sidecar = Sidecar(others={"branch": "local"})
    assert read_code(await extauthz.check(sidecar.authz, message, lambda: "made")) is None


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [True, False])
async def test_headers_are_read_in_both_forms(raw: bool) -> None:
    sidecar = Sidecar(callers=CALLERS)
    known = {**bearer("alice"), "content_length": str(len(BODY))}
    assert read_code(await ask(sidecar, BODY, raw=raw, **known)) is None
    assert read_code(await ask(sidecar, BODY, raw=raw)) == "invalid_api_key"
    twice = f"{bearer('alice')['authorization']},{bearer('bob')['authorization']}"
    assert read_code(await ask(sidecar, BODY, raw=raw, authorization=twice)) == "invalid_api_key"
    assert (
        read_code(await ask(sidecar, BODY, raw=raw, **known, x_data_class="default,x")) == "invalid_request"
    )


async def test_what_stands_behind_is_told_who_asks_and_nothing_that_was_made_up() -> None:
    soft = TrafficClasses([TrafficClass("soft")])
    sidecar = Sidecar(callers=CALLERS, queue_policy=QueuePolicy(256, soft))
    forged = {"x_envoy_ext_pool": "x", "x_envoy_ext_caller": "root", "x_envoy_ext_lease": "1"}
    steering = {"x_envoy_retry_on": "5xx", "x_operation_id": "op_1", "x_ext_mesh_attempt": "1"}
    of_the_gateway = {"x_envoy_external_address": "10.0.0.1", "x_envoy_attempt_count": "1"}
    length = {"content_length": str(len(BODY))}
    asked = {**bearer("alice"), **forged, **steering, **of_the_gateway, **length, "x_request_class": "soft"}
    answer = await ask(sidecar, BODY, **asked)
    ok = answer.ok_response
    known = {"caller": "alice", "pool": POOL, "class": "soft", "data-class": "default"}
    assert {one.header.key: one.header.value for one in ok.headers} == {
        f"x-envoy-ext-{name}": value for name, value in known.items()
    }
    assert not any(one.append.value for one in ok.headers)
    assert dict(answer.dynamic_metadata) == known
    assert set(ok.headers_to_remove) == {
        *("x-envoy-ext-lease", "x-envoy-retry-on", "x-operation-id", names.MESH_ATTEMPT),
        *("authorization", "x-api-key", "api-key"),
    }


async def test_where_no_caller_is_checked_credentials_go_on_and_a_callers_name_does_not() -> None:
    answer = await ask(Sidecar(), authorization="Bearer k", x_envoy_ext_caller="root")
    assert names.CALLER not in {one.header.key for one in answer.ok_response.headers}
    assert list(answer.ok_response.headers_to_remove) == [names.CALLER]


async def test_only_an_exchange_that_runs_here_makes_a_request_an_attempt() -> None:
    played = await play_until_delta(Sidecar())
    committed = await ask(played.sidecar, x_envoy_ext_exchange=played.exchange_id)
    assert read_code(committed) == "replay_not_allowed"
    sidecar = Sidecar(callers=CALLERS)
    made_up = await ask(sidecar, x_envoy_ext_exchange="exg_1")
    assert read_code(made_up) == "invalid_api_key"
    client = Sent()
    sidecar.arrivals.arrive(sidecar.build_arrival(), client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    attempt = await ask(sidecar, x_envoy_ext_exchange=forward.exchange_id, x_envoy_ext_pool=POOL)
    assert read_code(attempt) is None
    assert not attempt.ok_response.headers_to_remove, "its headers lead it to its replica"


# --- a ladder -------------------------------------------------------------------------------------


async def test_of_a_ladder_the_text_alone_can_be_given_here() -> None:
    rungs = (
        ShortenGeneration(8),
        OtherPool(PoolName("small"), "small"),
        HandOff("http://person.example/hook", "a person", 2.0),
    )
    classes = TrafficClasses(
        [
            TrafficClass("text", ladder=Ladder((*rungs, Template("later")))),
            TrafficClass("none", ladder=Ladder(rungs)),
        ]
    )
    sidecar = Sidecar(
        concurrency=1, replicas=("a",), others={"small": "local"}, queue_policy=QueuePolicy(0, classes)
    )
    sidecar.arrivals.arrive(sidecar.build_arrival(), Sent())
    await sidecar.settle()
    length = {"content_length": str(len(BODY))}
    assert read_code(await ask(sidecar, BODY, x_request_class="none", **length)) == "queue_full"
    given = (await ask(sidecar, BODY, x_request_class="text", **length)).denied_response
    assert given.status.code == 200
    assert "later" in given.body
    assert {one.header.key: one.header.value for one in given.headers}["x-degraded"] == "template"
    assert len(await sidecar.journal.list_recent(10)) == 1, "the one that holds the slot"


async def test_refusals_are_counted_and_a_held_boundary_is_logged() -> None:
    sidecar = Sidecar(others={"partner": "external:p"})
    body = b'{"model": "partner"}'
    assert read_code(await ask(sidecar, body, content_length="20")) == "data_class_forbidden"
    notes = sidecar.watcher.notes
    assert [note for note in notes if isinstance(note, BoundaryHeld)] == [
        BoundaryHeld("partner", "req-9", None, "default")  # type: ignore[arg-type]
    ]
    assert not any(isinstance(note, RequestRefused) for note in notes), "counted where it was held"
    assert read_code(await ask(sidecar, path="/nothing")) == "invalid_request"
    assert any(isinstance(note, RequestRefused) and note.code == "invalid_request" for note in notes)
