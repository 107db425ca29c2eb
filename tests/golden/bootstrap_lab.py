"""A real Envoy with our rendering, between replicas and a sidecar that play a script.

The sidecar answers by the book and adds what a test's request headers ask for, so that a test is
about Envoy and its configuration and not about our sidecar.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Config, parse_config
from envoy_ext.domain import names

LIMIT = 2 << 20
REPLICA_ATTRIBUTE = "xds.upstream_host_metadata.filter_metadata['envoy_ext']['replica']"
ATTRIBUTES = "envoy.filters.http.ext_proc"


@dataclass
class Arrival:
    """One request as a replica got it."""

    replica: str
    headers: dict[str, str]
    path: str
    body: bytes


@dataclass
class Replica:
    """Answers two events; dies or answers otherwise when `x-lab-replica` says so."""

    name: str
    arrivals: list[Arrival]
    port: int = 0
    server: asyncio.Server | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                arrival = await self._read(reader)
                self.arrivals.append(arrival)
                await self._answer(arrival, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Arrival:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = b""
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        return Arrival(self.name, headers, head[0].split(" ")[1], body)

    async def _answer(self, arrival: Arrival, writer: asyncio.StreamWriter) -> None:
        order = arrival.headers.get("x-lab-replica", "")
        if order == "die-first" and arrival.headers["x-envoy-attempt-count"] == "1":
            writer.transport.abort()
            raise ConnectionResetError
        extra = f"{names.REPLAY}: UC\r\n{names.REFUSAL}: x\r\n" if order == "fake-marks" else ""
        size = int(order.removeprefix("bytes-")) if order.startswith("bytes-") else 8
        writer.write(
            f"HTTP/1.1 200 OK\r\nx-replica: {self.name}\r\n{extra}content-length: {size}\r\n\r\n".encode()
        )
        writer.write(b"x" * size)
        await writer.drain()


class Sidecar:
    """A scripted sidecar: what it saw of each exchange, and what the access logs told it."""

    def __init__(self) -> None:
        self.logs: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.delivery_kinds: list[str] = []
        self.answered_by: list[str] = []
        self.saw_local_reply = False
        self.server: grpc.aio.Server | None = None

    async def start(self, address: str) -> None:
        process = grpc.stream_stream_rpc_method_handler(
            self._process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
        )
        log = grpc.stream_unary_rpc_method_handler(
            self._log, StreamAccessLogsMessage.FromString, StreamAccessLogsResponse.SerializeToString
        )
        self.server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        self.server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "envoy.service.ext_proc.v3.ExternalProcessor", {"Process": process}
                ),
                grpc.method_handlers_generic_handler(
                    "envoy.service.accesslog.v3.AccessLogService", {"StreamAccessLogs": log}
                ),
            )
        )
        self.server.add_insecure_port(address)
        await self.server.start()

    async def stop(self) -> None:
        assert self.server is not None
        await self.server.stop(0)

    def forget_logs(self) -> None:
        """Drop the entries of earlier requests."""
        while not self.logs.empty():
            self.logs.get_nowait()

    async def wait_log(self, name: str) -> Any:
        """The next entry of one log; entries of the other are dropped."""
        async with asyncio.timeout(10):
            while True:
                found, entry = await self.logs.get()
                if found == name:
                    return entry

    async def _log(self, messages: AsyncIterator[Any], _context: Any) -> Any:
        name = ""
        async for message in messages:
            name = message.identifier.log_name or name
            for entry in message.http_logs.log_entry:
                self.logs.put_nowait((name, entry))
        return StreamAccessLogsResponse()

    async def _process(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        role = dict(context.invocation_metadata())[names.ROLE_METADATA]
        replies = self._deliver(messages) if role == names.ROLE_DELIVERY else self._attempt(messages)
        async for reply in replies:
            yield reply

    async def _deliver(self, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        self.delivery_kinds.clear()
        async for message in messages:
            kind = message.WhichOneof("request")
            self.delivery_kinds.append(kind)
            reply = ProcessingResponse()
            if kind == "request_headers":
                headers = read_headers(message.request_headers)
                if headers.get("x-lab-delivery") == "refuse":
                    yield refuse(429, {"retry-after": "7", "content-type": "application/json"}, b'{"mine":1}')
                    return
                if headers.get("x-lab-delivery") == "leave":
                    return
                set_header(reply.request_headers, names.EXCHANGE, "exg_1")
                set_header(reply.request_headers, names.POOL, headers.get("x-lab-pool", "chat"))
            elif kind == "response_body":
                streamed = reply.response_body.response.body_mutation.streamed_response
                streamed.body = message.response_body.body
                streamed.end_of_stream = message.response_body.end_of_stream
            else:
                getattr(reply, kind).SetInParent()
            yield reply

    async def _attempt(self, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        order = ""
        async for message in messages:
            kind = message.WhichOneof("request")
            reply = ProcessingResponse()
            if kind == "request_headers":
                headers = read_headers(message.request_headers)
                order = headers.get("x-lab-attempt", "")
                if order == "refuse":
                    yield refuse(409, {names.REFUSAL: "no"}, b"refused")
                    return
                number = headers["x-envoy-attempt-count"]
                set_header(reply.request_headers, names.ATTEMPT, f"att_{number}")
                if "x-lab-endpoint" in headers:
                    set_header(reply.request_headers, names.ENDPOINT, headers["x-lab-endpoint"])
                yield reply
                continue
            fields = message.attributes[ATTRIBUTES].fields
            if fields["response.code_details"].string_value != "via_upstream":
                self.saw_local_reply = True
                if order == "refuse-after-loss":
                    yield refuse(409, {names.REFUSAL: "no"}, b"refused")
                    return
            self.answered_by.append(fields[REPLICA_ATTRIBUTE].string_value)
            reply.response_headers.SetInParent()
            yield reply
            return


def read_headers(message: Any) -> dict[str, str]:
    return {one.key: one.raw_value.decode() for one in message.headers.headers}


def set_header(target: Any, name: str, value: str) -> None:
    option = target.response.header_mutation.set_headers.add()
    option.header.key, option.header.raw_value = name, value.encode()
    option.append_action = option.OVERWRITE_IF_EXISTS_OR_ADD


def refuse(status: int, headers: dict[str, str], body: bytes) -> Any:
    reply = ProcessingResponse()
    immediate = reply.immediate_response
    immediate.status.code, immediate.body, immediate.details = status, body, "envoy_ext_refused"
    for name, value in headers.items():
        option = immediate.headers.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode()
        option.append_action = option.OVERWRITE_IF_EXISTS_OR_ADD
    return reply


@dataclass
class Lab:
    config: Config
    sidecar: Sidecar
    replicas: dict[str, Replica]
    arrivals: list[Arrival]
    url: str

    async def post(
        self, body: bytes = b"{}", *, path: str = "/v1/chat/completions", http2: bool = False, **headers: str
    ) -> httpx.Response:
        """One request; underscores in the names of headers stand for hyphens."""
        return await self.send(body, path, http2, {name.replace("_", "-"): v for name, v in headers.items()})

    async def send(
        self, body: bytes | AsyncIterator[bytes], path: str, http2: bool, headers: dict[str, str]
    ) -> httpx.Response:
        self.arrivals.clear()
        self.sidecar.delivery_kinds.clear()
        self.sidecar.answered_by.clear()
        async with httpx.AsyncClient(http1=not http2, http2=http2, timeout=20, trust_env=False) as client:
            return await client.post(self.url + path, content=body, headers=headers)


@contextlib.asynccontextmanager
async def run_lab() -> AsyncIterator[Lab]:
    """Three replicas, the scripted sidecar and an Envoy with the rendering for them."""
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-"))  # short: sockets have short paths
    arrivals: list[Arrival] = []
    replicas = {name: Replica(name, arrivals) for name in "abc"}
    for replica in replicas.values():
        await replica.start()
    config = parse_config(
        {
            "ingress": {"address": "127.0.0.1", "port": 0},
            "envoy": {"admin": {"port": 0}, "endpoints": "static"},
            "sidecar": {"socket": f"{directory}/sidecar.sock", "transport": "grpc_aio"},
            "limits": {"max_request_bytes": LIMIT, "client_write_stall": "1s"},
            "pools": [
                {
                    "name": "chat",
                    "models": ["m"],
                    "replicas": [
                        {"id": name, "url": f"http://127.0.0.1:{replica.port}"}
                        for name, replica in replicas.items()
                    ],
                }
            ],
        },
        "test",
    )
    sidecar = Sidecar()
    envoy = EnvoyProcess(find_envoy(), render_bootstrap(config), directory, concurrency=1)
    try:
        await sidecar.start(f"unix:{config.sidecar.socket}")
        await envoy.start()
        url = f"http://{await envoy.find_listener(names.LISTENER_INGRESS)}"
        yield Lab(config, sidecar, replicas, arrivals, url)
    finally:
        await envoy.stop()
        await sidecar.stop()
        for replica in replicas.values():
            assert replica.server is not None
            replica.server.close()
        shutil.rmtree(directory, ignore_errors=True)
