"""What is not a broken stream passes as it is, byte for byte."""

import asyncio
import json
from pathlib import Path

import pytest

from envoy_ext.bootstrap.filters import MESSAGE_TIMEOUT_S
from tests.with_envoy.asking import CHAT, EMBEDDINGS, ask, mint_request_id
from tests.with_envoy.wire import (
    WireConnection,
    Wired,
    WireRequest,
    answering,
    build_head,
    build_response,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

DATA = Path(__file__).parent.parent / "data"
WIRED = {"replicas": 2, "pass_through": ["/v1/audio/", "/tokenize"]}

# Spaces, key order and escapes as no JSON library would write them again.
ODD_JSON = (
    b'{ "object" :"chat.completion",\n\t"choices": '
    b'[ {"message":{"content":"caf\\u00e9 \xe2\x82\xac"} } ] , "x":1e2}\n'
)


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS])
async def test_an_answer_in_one_piece_passes_unchanged(wired: Wired, path: str) -> None:
    own = [("x-vendor", "7"), ("cache-control", "no-store"), ("set-cookie", "a=1"), ("set-cookie", "b=2")]
    wired.answer_with(answering(build_response(ODD_JSON, *own)))

    reply = await ask(wired.gateway, path, stream=False)

    assert (reply.status, reply.body) == (200, ODD_JSON)
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-vendor"] == "7"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers.getall("set-cookie") == ["a=1", "b=2"]
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["delivered_deltas"]) == ("completed", 1)


async def test_a_request_reaches_the_replica_unchanged(wired: Wired) -> None:
    wired.answer_with(answering(build_response(b"{}")))
    data = (
        b'{"model": "sim",\n "messages":[{"role":"user","content":"\\u00e9 \xe2\x82\xac"}],'
        b' "vendor": {"a":[1.0]}}'
    )
    sent = {"content-type": "application/json", "authorization": "Bearer k", "x-vendor": "v"}

    reply = await ask(wired.gateway, data=data, headers=sent)

    (request,) = wired.find_requests(reply.request_id)
    assert request.line == f"POST {CHAT} HTTP/1.1"
    assert request.body == data
    for name, value in sent.items():
        assert request.get_all(name) == [value]


async def test_an_empty_answer_with_204_passes(wired: Wired) -> None:
    wired.answer_with(answering(b"HTTP/1.1 204 No Content\r\nconnection: close\r\nx-vendor: 7\r\n\r\n"))

    reply = await ask(wired.gateway)

    assert (reply.status, reply.body, reply.cut) == (204, b"", False)
    assert reply.headers["x-vendor"] == "7"
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert (operation["ending"], len(operation["attempts"])) == ("finished", 1)


@pytest.mark.parametrize("length", [[("content-length", "0")], []])
async def test_a_document_without_a_byte_is_no_answer(wired: Wired, length: list[tuple[str, str]]) -> None:
    wired.answer_with(answering(build_head(*length, content_type="application/json")))

    reply = await ask(wired.gateway, stream=False)

    assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert {attempt["outcome"] for attempt in operation["attempts"]} == {"truncated"}
    assert (operation["state"], operation["first_delta_sent"]) == ("failed", False)


async def test_a_document_that_ends_in_its_middle_is_broken_off_and_is_no_success(wired: Wired) -> None:
    cut = b'{"choices":[{"message":{"content":"Hel'
    wired.answer_with(answering(build_head(content_type="application/json"), cut))

    reply = await ask(wired.gateway, stream=False)

    assert (reply.status, reply.cut, reply.body) == (200, True, cut)
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["ending"]) == ("failed", "upstream_broke")
    assert (operation["error"]["reason"], len(operation["attempts"])) == ("truncated", 1)


async def test_a_document_counts_the_tokens_that_it_states(wired: Wired) -> None:
    wired.answer_with(answering(build_response(b'{"choices":[],"usage":{"completion_tokens":37}}')))

    reply = await ask(wired.gateway, stream=False)

    operation = await wired.gateway.wait_operation(reply.request_id)
    assert (operation["delivered_output_tokens"], operation["delivered_deltas"]) == (37, 1)


async def test_head_of_the_models_list_waits_for_no_body(wired: Wired) -> None:
    wired.answer_with(answering(build_head(("content-length", "1234"), content_type="application/json")))

    reply = await ask(wired.gateway, "/v1/models", method="HEAD")

    assert (reply.status, reply.body, reply.cut) == (200, b"", False)
    assert reply.headers["content-type"] == "application/json"
    assert wired.find_requests(reply.request_id)[0].line == "HEAD /v1/models HTTP/1.1"
    assert (await wired.gateway.wait_operation(reply.request_id))["ending"] == "finished"


async def test_the_models_list_and_a_model_with_a_slash_in_its_name_pass(wired: Wired) -> None:
    wired.answer_with(answering(build_response(b'{"object":"list","data":[]}')))

    for path in ("/v1/models", "/v1/models/org/name", "/v1/models/org%2Fname"):
        reply = await ask(wired.gateway, path, method="GET")
        assert (reply.status, reply.json) == (200, {"object": "list", "data": []})
        assert wired.find_requests(reply.request_id)[0].line == f"GET {path} HTTP/1.1"


@pytest.mark.parametrize("interim", ["100 Continue", "102 Processing", "103 Early Hints"])
async def test_an_interim_answer_is_not_taken_for_the_final_one(wired: Wired, interim: str) -> None:
    wired.answer_with(answering(f"HTTP/1.1 {interim}\r\n\r\n".encode(), build_response(ODD_JSON)))

    reply = await ask(wired.gateway, stream=False)

    assert (reply.status, reply.body) == (200, ODD_JSON)


async def test_a_client_that_expects_100_continue_is_asked_for_its_body(wired: Wired) -> None:
    wired.answer_with(answering(build_response(ODD_JSON)))
    request_id = mint_request_id()
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "x"}]}).encode()
    host, port = wired.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nexpect: 100-continue\r\n\r\n"
    )
    writer.write(head.encode())
    try:
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            assert wired.find_requests(request_id) == []
            writer.write(body)
            answer = await reader.read()
    finally:
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert ODD_JSON in answer
    (request,) = wired.find_requests(request_id)
    assert (request.body, request.get_all("expect")) == (body, [])


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "401 Unauthorized", "404 Not Found", "422 Unprocessable"]
)
async def test_what_a_replica_says_of_the_clients_mistake_passes_unchanged(wired: Wired, status: str) -> None:
    body = b'{"error": {"message": "max_tokens must be at least 1", "type": "BadRequestError"}}'
    wired.answer_with(answering(build_response(body, ("x-vendor", "7"), status=status)))

    reply = await ask(wired.gateway)

    assert (reply.status, reply.body) == (int(status[:3]), body)
    assert reply.headers["x-vendor"] == "7"
    assert len(wired.find_requests(reply.request_id)) == 1
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["client_error"]
    assert (operation["state"], operation["ending"]) == ("failed", "finished")


async def test_a_path_that_is_no_inference_api_is_not_served(wired: Wired) -> None:
    for method, path in [
        ("GET", "/metrics"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", CHAT),
        ("DELETE", "/"),
    ]:
        reply = await ask(wired.gateway, path, method=method, data=b"" if method == "POST" else None)
        assert (reply.status, reply.json["error"]["code"]) == (404, "invalid_request")
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["x-request-id"] == reply.json["error"]["request_id"] == reply.request_id
        assert wired.find_requests(reply.request_id) == []


async def test_a_model_that_is_not_served_is_404_and_no_replica_is_asked(wired: Wired) -> None:
    reply = await ask(wired.gateway, body={"model": "other", "messages": []})

    assert (reply.status, reply.json["error"]["code"]) == (404, "invalid_request")
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-should-retry"] == "false"
    assert "other" not in reply.json["error"]["message"]
    assert wired.find_requests(reply.request_id) == []


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"model": 3}', b"\xff\xfe"])
async def test_a_body_that_cannot_be_read_is_the_clients_mistake(wired: Wired, data: bytes) -> None:
    reply = await ask(wired.gateway, data=data)

    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert reply.headers["x-should-retry"] == "false"
    assert wired.find_requests(reply.request_id) == []


async def test_a_configured_prefix_passes_unread_and_is_never_replayed(wired: Wired) -> None:
    wired.answer_with(answering(build_response(b"\x00\xff" * 500, content_type="audio/wav")))
    data = b"\x00 no JSON \xff"
    reply = await ask(
        wired.gateway, "/v1/audio/speech?voice=x", data=data, headers={"content-type": "audio/wav"}
    )

    assert (reply.status, reply.body) == (200, b"\x00\xff" * 500)
    (request,) = wired.find_requests(reply.request_id)
    assert request.line == "POST /v1/audio/speech?voice=x HTTP/1.1"
    assert request.body == data

    async def reset(_request: WireRequest, connection: WireConnection) -> None:
        connection.reset()

    wired.answer_with(reset)
    reply = await ask(wired.gateway, "/tokenize", data=b"x")
    assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unavailable")
    assert len(wired.find_requests(reply.request_id)) == 1
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["replica_died"]


async def test_a_body_that_breaks_off_with_nothing_to_add_breaks_off_for_the_client(wired: Wired) -> None:
    """Half of a JSON document: nobody may take it for a whole one."""
    read = asyncio.Event()

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(
            build_head(("content-length", "1000"), content_type="application/json"), b'{"half": '
        )
        await read.wait()
        connection.reset()

    wired.answer_with(answer)
    request_id = mint_request_id()
    body = {"model": "sim", "messages": []}
    async with wired.gateway.http.post(
        wired.gateway.url + CHAT, json=body, headers={"x-request-id": request_id}
    ) as reply:
        assert reply.status == 200
        assert await reply.content.readany() == b'{"half": '
        read.set()
        with pytest.raises(Exception, match="payload is not completed"):
            await reply.content.read()
    operation = await wired.gateway.wait_operation(request_id)
    assert (operation["ending"], operation["error"]["reason"]) == ("upstream_broke", "replica_died")
    assert len(wired.find_requests(request_id)) == 1
    assert wired.gateway.read_metric("envoy_ext_bugs_total") == 0


RECORDED = sorted(
    path.name
    for path in (DATA / "sse").glob("*.sse")
    if path.stem
    not in {
        # Attempts that end before a client could have read anything, and cuts: other tests.
        "framing_done_space_variants",
        "framing_raw_json_error_no_data_prefix",
        "llamacpp_pings_only_then_cut",
        "tgi_generate_stream_overloaded_first",
        "vllm_error_before_first_token",
        "vllm_role_only_then_cut",
        "vllm_cut_no_finish_no_done",
    }
)
PATHS = {"responses": "/v1/responses", "anthropic": "/v1/messages", "tgi_generate": "/generate_stream"}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("size", [None, 7])
async def test_recorded_streams_of_real_engines_pass_byte_for_byte(
    wired: Wired, name: str, size: int | None
) -> None:
    data = (DATA / "sse" / name).read_bytes()
    step = size or len(data)
    chunks = [data[at : at + step] for at in range(0, len(data), step)]

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        await connection.send_chunks(*chunks, b"")

    wired.answer_with(answer)
    path = next((path for prefix, path in PATHS.items() if name.startswith(prefix)), CHAT)
    reply = await ask(wired.gateway, "/v1/completions" if name.startswith("legacy") else path)

    assert (reply.status, reply.cut) == (200, False)
    assert reply.body == data


async def test_a_replica_that_thinks_for_long_after_its_first_words_is_waited_for(wired: Wired) -> None:
    """Held words are no delta yet, and Envoy's time for the sidecar begins anew with each of them."""
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n'
    rest = (
        b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )

    async def think(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head())
        await asyncio.sleep(0.3)  # so that Envoy meets the role on its own
        await connection.send(role)
        await asyncio.sleep(MESSAGE_TIMEOUT_S + 0.5)
        await connection.send(rest)

    wired.answer_with(think)
    reply = await ask(wired.gateway)

    assert (reply.status, reply.body) == (200, role + rest)
    operation = await wired.gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["completed"]
