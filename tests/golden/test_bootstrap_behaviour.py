"""What a real Envoy does with the rendering: limits, marks, routing and its own answers."""

import asyncio
import hashlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envoy_ext.domain import names
from tests.golden.bootstrap_lab import LIMIT, Lab, run_lab

pytestmark = [pytest.mark.with_envoy, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab() -> AsyncIterator[Lab]:
    async with run_lab() as running:
        yield running


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


@pytest.mark.parametrize("way", ["content-length", "chunked", "http2"])
async def test_the_largest_body_is_replayed_byte_for_byte(lab: Lab, way: str) -> None:
    body = os.urandom(LIMIT)
    content = in_chunks(body) if way == "chunked" else body
    answer = await lab.send(content, "/v1/completions", way == "http2", {"x-lab-replica": "die-first"})
    assert answer.status_code == 200
    assert len(lab.arrivals) == 2
    assert {hashlib.sha256(one.body).hexdigest() for one in lab.arrivals} == {
        hashlib.sha256(body).hexdigest()
    }


@pytest.mark.parametrize("way", ["content-length", "chunked", "http2"])
async def test_one_byte_more_is_413_before_the_sidecar_hears_of_it(lab: Lab, way: str) -> None:
    body = b"x" * (LIMIT + 1)
    content = in_chunks(body) if way == "chunked" else body
    answer = await lab.send(content, "/v1/completions", way == "http2", {"x-request-id": "r-1"})
    assert answer.status_code == 413
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"] | {"message": ""} == {
        "code": "request_too_large",
        "type": "invalid_request_error",
        "message": "",
        "request_id": "r-1",
        "operation_id": None,
        "partial_output": False,
        "delivered_output_tokens": 0,
        "retryable": False,
    }
    assert lab.arrivals == []
    assert not any(kind.startswith("request") for kind in lab.sidecar.delivery_kinds)


async def test_what_a_client_sends_under_reserved_names_reaches_nobody(lab: Lab) -> None:
    answer = await lab.post(
        X_Envoy_Ext_Pool="none",
        x_envoy_ext_attempt="att_9",
        x_envoy_attempt_count="9",
        x_envoy_max_retries="9",
        x_envoy_retry_on="5xx",
        x_envoy_upstream_rq_timeout_ms="1",
        x_ours="kept",
    )
    assert answer.status_code == 200
    headers = lab.arrivals[0].headers
    assert headers["x-ours"] == "kept"
    assert headers[names.ATTEMPT] == "att_1"
    assert headers["x-envoy-attempt-count"] == "1"
    reserved = {name for name in headers if name.startswith("x-envoy-")}
    # The last two are Envoy's own words on where a client is.
    assert reserved <= {
        names.ATTEMPT,
        "x-envoy-attempt-count",
        "x-envoy-external-address",
        "x-envoy-internal",
    }


async def test_a_header_with_an_underscore_is_dropped_and_its_request_goes_on(lab: Lab) -> None:
    answer = await lab.send(b"{}", "/v1/completions", False, {"x_envoy_ext_pool": "none", "x-ours": "kept"})
    assert answer.status_code == 200
    assert "x_envoy_ext_pool" not in lab.arrivals[0].headers


async def test_an_escaped_slash_stays_escaped(lab: Lab) -> None:
    answer = await lab.post(path="/v1/models/org%2Fname")
    assert answer.status_code == 200
    assert lab.arrivals[0].path == "/v1/models/org%2Fname"


@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_the_replica_that_the_gate_names_answers(lab: Lab, name: str) -> None:
    endpoint = f"127.0.0.1:{lab.replicas[name].port}"
    for _ in range(4):  # round robin would not choose one replica four times
        answer = await lab.post(x_lab_endpoint=endpoint)
        assert answer.headers["x-replica"] == name
        assert lab.sidecar.answered_by == [name]


async def test_a_named_replica_that_is_none_leaves_the_choice_to_envoy_and_envoy_says_who_it_was(
    lab: Lab,
) -> None:
    answer = await lab.post(x_lab_endpoint="127.0.0.1:1")
    assert answer.status_code == 200
    assert lab.sidecar.answered_by == [answer.headers["x-replica"]]


async def test_what_the_hops_tell_each_other_is_not_told_to_replicas(lab: Lab) -> None:
    await lab.post(x_lab_endpoint=f"127.0.0.1:{lab.replicas['a'].port}")
    headers = lab.arrivals[0].headers
    assert not {names.EXCHANGE, names.POOL, names.ENDPOINT} & headers.keys()


async def test_a_lost_replica_costs_one_attempt_and_each_attempt_has_its_log_entry(lab: Lab) -> None:
    lab.sidecar.forget_logs()
    answer = await lab.post(x_lab_replica="die-first")
    assert answer.status_code == 200
    assert len(lab.arrivals) == 2
    lost = await lab.sidecar.wait_log(names.LOG_ATTEMPTS)
    assert lost.request.request_headers[names.ATTEMPT] == "att_1"
    assert lost.response.response_code_details.startswith("upstream_reset_before_response_started")
    good = await lab.sidecar.wait_log(names.LOG_ATTEMPTS)
    assert good.request.request_headers[names.ATTEMPT] == "att_2"
    assert good.response.response_code_details == "via_upstream"


async def test_a_replica_cannot_ask_for_a_replay(lab: Lab) -> None:
    answer = await lab.post(x_lab_replica="fake-marks")
    assert answer.status_code == 200
    assert len(lab.arrivals) == 1
    assert not {names.REPLAY, names.REFUSAL} & answer.headers.keys()


async def test_a_refusal_of_the_gate_is_final_and_reaches_no_replica(lab: Lab) -> None:
    lab.sidecar.forget_logs()
    answer = await lab.post(x_lab_attempt="refuse")
    assert (answer.status_code, answer.content) == (409, b"refused")
    assert lab.arrivals == []
    entry = await lab.sidecar.wait_log(names.LOG_ATTEMPTS)
    assert entry.request.request_headers[names.EXCHANGE] == "exg_1"
    assert entry.response.response_code_details == "envoy_ext_refused"


async def test_a_refusal_after_a_lost_replica_is_not_taken_for_a_loss(lab: Lab) -> None:
    """The lost replica's response flag is still set when the sidecar answers in its place."""
    answer = await lab.post(x_lab_replica="die-first", x_lab_attempt="refuse-after-loss")
    if not lab.sidecar.saw_local_reply:
        pytest.skip("this Envoy (before 1.37) does not show its local replies to ext_proc")
    assert (answer.status_code, answer.content) == (409, b"refused")
    assert len(lab.arrivals) == 1


async def test_a_refusal_of_the_sidecar_reaches_the_client_as_it_is(lab: Lab) -> None:
    answer = await lab.post(x_lab_delivery="refuse")
    assert (answer.status_code, answer.content) == (429, b'{"mine":1}')
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("headers", [{"x-lab-delivery": "leave"}, {"x-lab-pool": "none"}])
async def test_without_a_pool_from_the_sidecar_nothing_passes(lab: Lab, headers: dict[str, str]) -> None:
    answer = await lab.send(b"{}", "/v1/completions", False, headers)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "upstream_unavailable"
    assert answer.headers["retry-after"] == "1"
    assert lab.arrivals == []


async def test_a_client_that_reads_nothing_is_cut_and_its_replica_freed(lab: Lab) -> None:
    lab.arrivals.clear()
    host, port = lab.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lab.replicas["a"].left.clear()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n"
            "x-lab-replica: bytes-100000000\r\n"
            f"x-lab-endpoint: 127.0.0.1:{lab.replicas['a'].port}\r\n\r\n{{}}"
        )
        client.sendall(head.encode())
        async with asyncio.timeout(15):
            await lab.replicas["a"].left.wait()
    assert [one.replica for one in lab.arrivals] == ["a"]


async def test_no_other_user_may_open_the_hop(lab: Lab) -> None:
    assert stat.S_IMODE(Path(lab.config.egress_socket).stat().st_mode) == 0o600


async def test_without_a_sidecar_a_request_gets_an_error_of_the_documented_form_at_once() -> None:
    async with run_lab() as lab:
        await lab.sidecar.stop()
        answer = await lab.post(x_request_id='say "hi"\\')
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    error = json.loads(answer.content)["error"]
    assert (error["code"], error["request_id"]) == ("upstream_unavailable", 'say "hi"\\')
    assert lab.arrivals == []
