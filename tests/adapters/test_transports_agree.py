"""The same frames into both transports: the same comes out, and the same is heard behind them.

The client is gRPC's own. What differs is told apart by what a client or a session can see.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.auth.v3 import external_auth_pb2 as auth
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from envoy_ext.adapters.extproc_attempt import AttemptSession
from envoy_ext.adapters.extproc_delivery import DeliverySession
from envoy_ext.adapters.grpc_services import CHECK, STREAM_ACCESS_LOGS, Services
from envoy_ext.domain import names
from tests.support.sidecar import BODY, DELTA, REST, Sidecar
from tests.support.transports import (
    MAX_REQUEST,
    TRANSPORTS,
    WAIT_S,
    Served,
    build_request,
    connect,
    open_stream,
    read_body,
    serve,
)

Scenario = Callable[[Served, grpc.aio.Channel], Awaitable[Any]]


async def play(directory: Path, scenario: Scenario, bugs: int = 0, **options: Any) -> Any:
    """Play it on both; what it gives must be one and the same."""
    results = []
    for transport in TRANSPORTS:
        async with serve(transport, directory, **options) as served, connect(served.address) as channel:
            async with asyncio.timeout(WAIT_S):
                result = await scenario(served, channel)
                for session in served.sessions:
                    await session.over.wait()
        results.append((result, [session.heard for session in served.sessions]))
        assert len(served.watcher.bugs) == bugs, transport
    assert results[0] == results[1]
    return results[0]


async def end_of(call: Any) -> tuple[str, str]:
    """A call's status and message."""
    return (await call.code()).name, await call.details()


async def talk(channel: grpc.aio.Channel, *messages: bytes, end: bool = True, **options: Any) -> Any:
    """All answers to these messages, and the end."""
    call = open_stream(channel, **options)
    try:
        for message in messages:
            await call.write(message)
        if end:
            await call.done_writing()
    except asyncio.InvalidStateError:  # it is over before we have said all
        pass
    answers = []
    try:
        while (answer := await read_body(call)) is not None:
            answers.append(answer)
    except grpc.aio.AioRpcError:
        pass
    return answers, await end_of(call)


SCRIPTS: dict[str, tuple[list[bytes], bool, int]] = {
    "nothing": ([], True, 0),
    "echoes": ([b"echo:a", b"echo:", b"echo:" + b"x" * 100_000], True, 0),
    "several answers": ([b"many:200"], True, 0),
    "a large answer": ([b"large:6000000"], True, 0),
    "a large message": ([b"echo:" + b"x" * MAX_REQUEST], True, 0),
    "answers that come later": ([b"later:a", b"later:b", b"finish:c"], False, 0),
    "the session ends": ([b"echo:a", b"finish:b"], False, 0),
    "the session aborts": ([b"echo:a", b"abort:b"], False, 0),
    "a bug": ([b"echo:a", b"raise"], False, 1),
    "a bug at the end": ([b"raise at the end"], True, 1),
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_stream(name: str, tmp_path: Path) -> None:
    script, end, bugs = SCRIPTS[name]

    async def scenario(_: Served, channel: grpc.aio.Channel) -> Any:
        return await talk(channel, *(build_request(body) for body in script), end=end)

    (answers, status), heard = await play(tmp_path, scenario, bugs)
    assert heard == [[*(body.partition(b":")[0].decode() for body in script), "closed"]]
    assert status[0] == ("ABORTED" if name in ("the session aborts", "a bug") else "OK")
    if name == "the session ends":
        assert answers == [b"a", b"b"]
    if name == "a large message":
        assert answers == [b"x" * MAX_REQUEST]


async def test_a_message_that_is_none(tmp_path: Path) -> None:
    async def scenario(_: Served, channel: grpc.aio.Channel) -> Any:
        _, (code, _) = await talk(channel, build_request(b"echo:a"), b"\xff\xff\xff", end=False)
        return code

    assert (await play(tmp_path, scenario))[0] == "ABORTED"


async def test_a_message_above_the_limit(tmp_path: Path) -> None:
    async def scenario(_: Served, channel: grpc.aio.Channel) -> Any:
        answers, (code, _) = await talk(channel, build_request(b"echo:" + b"x" * (MAX_REQUEST + (2 << 20))))
        return answers, code

    assert (await play(tmp_path, scenario))[0] == ([], "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("role", ["nobody", "", names.ROLE_TOOL])
async def test_a_role_that_there_is_not(role: str, tmp_path: Path) -> None:
    async def scenario(_: Served, channel: grpc.aio.Channel) -> Any:
        return await talk(channel, role=role)

    (_, status), _ = await play(tmp_path, scenario)
    assert status == ("INVALID_ARGUMENT", f"initial metadata {names.ROLE_METADATA} names no role here")


async def test_a_method_that_there_is_not(tmp_path: Path) -> None:
    async def scenario(_: Served, channel: grpc.aio.Channel) -> Any:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/envoy.service.auth.v3.Authorization/Forget")(b"")
        return refused.value.code().name

    assert (await play(tmp_path, scenario))[0] == "UNIMPLEMENTED"


async def test_a_client_that_cancels(tmp_path: Path) -> None:
    async def scenario(served: Served, channel: grpc.aio.Channel) -> Any:
        call = open_stream(channel)
        await call.write(build_request(b"echo:a"))
        answer = await read_body(call)
        call.cancel()
        await served.sessions[0].over.wait()
        return answer

    assert await play(tmp_path, scenario) == (b"a", [["echo", "closed"]])


async def test_a_client_whose_time_is_up(tmp_path: Path) -> None:
    async def scenario(served: Served, channel: grpc.aio.Channel) -> Any:
        call = open_stream(channel, timeout=0.2)
        await call.write(build_request(b"echo:a"))
        await read_body(call)
        await served.sessions[0].over.wait()
        return await call.code()

    assert (await play(tmp_path, scenario))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_streams_that_are_open_at_once(tmp_path: Path) -> None:
    async def scenario(served: Served, channel: grpc.aio.Channel) -> Any:
        messages = [build_request(b"many:20"), build_request(b"large:200000"), build_request(b"finish:z")]
        return await asyncio.gather(*(talk(channel, *messages, end=False) for _ in range(40)))

    result, heard = await play(tmp_path, scenario)
    assert len(heard) == 40
    assert all(one == result[0] for one in result)


# --- the other services ---------------------------------------------------------------------------


def build_log(name: str) -> bytes:
    message = StreamAccessLogsMessage()
    message.identifier.log_name = name
    return bytes(message.SerializeToString())


async def test_a_log_stream(tmp_path: Path) -> None:
    """A bug costs an entry, and not the stream."""

    async def scenario(served: Served, channel: grpc.aio.Channel) -> Any:
        call = channel.stream_unary(
            STREAM_ACCESS_LOGS, response_deserializer=StreamAccessLogsResponse.FromString
        )()
        for name in ("a", "raise", "b"):
            await call.write(build_log(name))
        await call.done_writing()
        return await call == StreamAccessLogsResponse(), served.logs[0].heard

    assert (await play(tmp_path, scenario, bugs=1))[0] == (True, ["a", "b"])


async def decide(request: Any) -> auth.CheckResponse:
    """What the request's path says."""
    await asyncio.sleep(0)
    path = request.attributes.request.http.path
    if path == "/raise":
        raise ValueError("a bug of the decision")
    response = auth.CheckResponse()
    response.status.code = 7 if path == "/deny" else 0
    return response


@pytest.mark.parametrize(("path", "code"), [("/allow", 0), ("/deny", 7), ("/raise", None)])
async def test_a_question_of_ext_authz(path: str, code: int | None, tmp_path: Path) -> None:
    async def scenario(_: Served, channel: grpc.aio.Channel) -> Any:
        request = auth.CheckRequest()
        request.attributes.request.http.path = path
        ask = channel.unary_unary(CHECK, auth.CheckRequest.SerializeToString, auth.CheckResponse.FromString)
        try:
            return (await ask(request, timeout=WAIT_S)).SerializeToString(deterministic=True)
        except grpc.aio.AioRpcError as error:
            return error.code().name

    results = []
    for transport in TRANSPORTS:
        async with serve(transport, tmp_path, decide) as served, connect(served.address) as channel:
            results.append(await scenario(served, channel))
    assert results[0] == results[1]
    if code is None:
        assert results[0] == "UNKNOWN"
    else:
        assert auth.CheckResponse.FromString(results[0]).status.code == code


async def test_a_question_that_nobody_waits_for_is_decided_no_more(tmp_path: Path) -> None:
    for transport in TRANSPORTS:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def wait(_: Any, asked: asyncio.Event = asked, gone: asyncio.Event = gone) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

        async with serve(transport, tmp_path, wait) as served, connect(served.address) as channel:
            call = channel.unary_unary(CHECK)(b"")
            async with asyncio.timeout(WAIT_S):
                await asked.wait()
                call.cancel()
                await gone.wait()
        assert served.watcher.bugs == []


async def test_a_question_that_is_none(tmp_path: Path) -> None:
    """Where they differ: gRPC's statuscodes.md has INTERNAL for it, grpc.aio UNKNOWN. Envoy denies both."""
    codes = []
    for transport in TRANSPORTS:
        async with serve(transport, tmp_path) as served, connect(served.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(CHECK)(b"\xff\xff")
            codes.append(refused.value.code().name)
    assert codes == ["UNKNOWN", "INTERNAL"]


async def test_health(tmp_path: Path) -> None:
    async def scenario(served: Served, channel: grpc.aio.Channel) -> Any:
        stub, heard = health_pb2_grpc.HealthStub(channel), []
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="another"))
        heard += [(await watch.read()).status, (await unknown.read()).status]
        for serving in (False, False, True):
            await served.server.set_serving(serving)
            heard.append((await stub.Check(health_pb2.HealthCheckRequest())).status)
        heard += [(await watch.read()).status for _ in range(2)]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(health_pb2.HealthCheckRequest(service="another"))
        watch.cancel()
        unknown.cancel()
        return heard, refused.value.code().name

    result, _ = await play(tmp_path, scenario)
    assert result == ([1, 3, 2, 2, 1, 2, 1], "NOT_FOUND")


# --- the real sessions ----------------------------------------------------------------------------


def build(kind: str, **fields: str) -> ProcessingRequest:
    """A message with headers."""
    request = ProcessingRequest()
    for name, value in fields.items():
        header = getattr(request, kind).headers.headers.add()
        header.key, header.raw_value = name.replace("__", ":").replace("_", "-"), value.encode()
    return request


def build_body(kind: str, data: bytes, *, end: bool) -> ProcessingRequest:
    request = ProcessingRequest()
    body = getattr(request, kind)
    body.body, body.end_of_stream = data, end
    return request


async def test_a_request_from_its_headers_to_its_last_byte(tmp_path: Path) -> None:
    """Both filters' real sessions, on the real services: every reply, byte for byte."""
    results = []
    for transport in TRANSPORTS:
        sidecar = Sidecar()

        def real(given: Services, sidecar: Sidecar = sidecar) -> Services:
            return Services(
                delivery=lambda outbox: DeliverySession(
                    sidecar.arrivals, outbox, lambda: "r-1", lambda seconds: None
                ),
                attempt=lambda outbox: AttemptSession(sidecar.exchanges, sidecar.reports, outbox),
                access_log=given.access_log,
                check=given.check,
                observer=sidecar.watcher,
                max_request_bytes=given.max_request_bytes,
            )

        async with serve(transport, tmp_path, build=real) as served, connect(served.address) as channel:
            async with asyncio.timeout(WAIT_S):
                results.append(await play_request(channel))
        await sidecar.settle()
        assert sidecar.watcher.bugs == []
    assert results[0] == results[1]
    assert len(results[0]) == 9


async def play_request(channel: grpc.aio.Channel) -> list[bytes]:
    replies = []

    async def say(call: Any, message: ProcessingRequest, answers: int = 1) -> Any:
        await call.write(message.SerializeToString())
        answer = None
        for _ in range(answers):
            answer = await call.read()
            replies.append(answer.SerializeToString(deterministic=True))
        return answer

    delivery = open_stream(channel)
    headers = build("request_headers", __method="POST", __path="/v1/chat/completions")
    await say(delivery, headers)
    forwarded = await say(delivery, build_body("request_body", BODY, end=True))
    mutation = forwarded.request_body.response.header_mutation.set_headers
    sent = {one.header.key: one.header.raw_value.decode() for one in mutation}
    attempt = open_stream(channel, names.ROLE_ATTEMPT)
    headers = build("request_headers", __method="POST", __path="/v1/chat/completions")
    for name in (names.EXCHANGE, names.POOL):
        header = headers.request_headers.headers.headers.add()
        header.key, header.raw_value = name, sent[name].encode()
    await say(attempt, headers)
    answered = {"__status": "200", "content_type": "text/event-stream"}
    # Patience at once; the headers and the chunk when the first delta is there.
    held = build("response_headers", **answered)
    fields = held.attributes["envoy.filters.http.ext_proc"].fields
    fields[names.REPLICA_ATTRIBUTE].string_value = "a"
    await say(attempt, held)
    await say(attempt, build_body("response_body", DELTA, end=False), answers=2)
    assert await attempt.read() is grpc.aio.EOF
    await say(delivery, build("response_headers", **answered), answers=0)
    await say(delivery, build_body("response_body", DELTA, end=False), answers=2)
    await say(delivery, build_body("response_body", REST, end=True))
    assert await delivery.read() is grpc.aio.EOF
    return replies
