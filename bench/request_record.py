"""Record what a real Envoy sends for one short request, for `request_path.py`.

    python bench/request_record.py      (writes bench/recorded/short_request.json)

The sidecar runs in this process, with the native transport, so that every frame can be seen. What is kept is
from a quiet connection, whose header blocks need no compression table. The prompt is one letter.
"""

import asyncio
import contextlib
import json
import re
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop

from bench.stream_cost import Load, Sample, ask, build_config, run_envoy, run_process
from envoy_ext.adapters import grpc_native
from envoy_ext.app import App
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.domain import names
from envoy_ext.http2 import frames
from envoy_ext.http2.frames import FrameType

RECORDED: Final = Path(__file__).parent / "recorded" / "short_request.json"
SHORT: Final = Load(streams=1, chunks=1, gap_ms=0, requests_a_stream=1)
WARM: Final = 4
LOGGED_S: Final = 1.0
IDS: Final = {
    "request": rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "exchange": rb"exg_\w{58}",
    "operation": rb"op_\w{26}",
    "attempt": rb"att_\w{26}",
}


class Recorder:
    """Sees all bytes that Envoy sends, and keeps blocks and messages by stream."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int], bytes] = {}
        self.messages: dict[tuple[int, int], list[bytes]] = {}
        self._connections: dict[int, int] = {}

    def forget_messages(self) -> None:
        """What comes from here on is wanted."""
        self.messages.clear()

    def install(self) -> None:
        """Stand in front of every connection of this process."""
        receive = grpc_native._Connection.data_received

        def data_received(connection: Any, data: bytes) -> None:
            self._read(self._connections.setdefault(id(connection), len(self._connections)), data)
            receive(connection, data)

        grpc_native._Connection.data_received = data_received  # type: ignore[method-assign]

    def _read(self, connection: int, data: bytes) -> None:
        at = len(frames.PREFACE) if data.startswith(frames.PREFACE) else 0
        while at < len(data):  # Envoy writes whole frames of a request this short
            high, low, kind, _, stream = frames.unpack_header(data, at)
            end = at + frames.HEADER_BYTES + (high << 16 | low)
            if kind == FrameType.HEADERS:
                self.blocks[connection, stream] = data[at + frames.HEADER_BYTES : end]
            elif kind == FrameType.DATA and end > at + frames.HEADER_BYTES:
                message = data[at + frames.HEADER_BYTES : end]
                self.messages.setdefault((connection, stream), []).append(message)
            at = end


def build_recording(recorder: Recorder, directory: str, engine_port: int) -> dict[str, Any]:
    """Each stream's header block and messages, the ids that are to be replaced, and the replica's port."""
    streams = []
    for key, messages in recorder.messages.items():
        neutral = "/run/envoy-ext".ljust(len(directory), "-").encode()
        texts = [one.replace(directory.encode(), neutral) for one in messages]
        block = recorder.blocks[key]
        encoded = [b64encode(one).decode() for one in texts]
        streams.append({"block": b64encode(block).decode(), "messages": encoded})
    whole = b"".join(one for messages in recorder.messages.values() for one in messages)
    ids = {}
    for name, pattern in IDS.items():
        found = set(re.findall(pattern, whole))
        assert len(found) == 1, f"{name}: {len(found)} ids in one request"
        ids[name] = found.pop().decode()
    return {"engine_port": engine_port, "ids": ids, "streams": streams}


async def main() -> None:
    """Run one request behind a few that warm the connection up."""
    recorder = Recorder()
    recorder.install()
    root = Path(__file__).parent.parent
    async with contextlib.AsyncExitStack() as opened:
        made = opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-bench-"))
        command = (sys.executable, str(root / "bench" / "engine.py"), "0")
        _, line = await opened.enter_async_context(run_process(*command, ready="ready"))
        engine_port = int(line.split()[1])
        config = build_config(engine_port, Path(made))
        sidecar = config.sidecar.model_copy(update={"transport": "native"})
        config = config.model_copy(update={"sidecar": sidecar})
        app = App(config)
        await app.start()
        envoy = await opened.enter_async_context(run_envoy(render_bootstrap(config), Path(made) / "envoy"))
        port = int((await envoy.find_listener(names.LISTENER_INGRESS)).rpartition(":")[2])
        for _ in range(WARM):
            await ask(port, SHORT, Sample(), 0)
        await asyncio.sleep(LOGGED_S)
        recorder.forget_messages()
        await ask(port, SHORT, Sample(), 0)
        await asyncio.sleep(LOGGED_S)
        recording = build_recording(recorder, made, engine_port)
        await app.stop()
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(recording, indent=1) + "\n")
    print(f"{RECORDED}: {[len(one['messages']) for one in recording['streams']]} messages")


if __name__ == "__main__":
    uvloop.run(main())
