"""The log of what an engine did, and the text that follows from a seed."""

import json
import time
from pathlib import Path
from typing import Any

from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess
from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, Connection, ask, build_request

BODY = {"messages": [{"role": "user", "content": "a secret"}], "stream": True}


def read(path: Path, request_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["request_id"] == request_id]


async def test_an_answer_is_logged_from_its_start_to_its_end(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    engine = await start_engine(tokens=2, event_log=str(tmp_path / "log"))
    began = time.monotonic()
    reply = await ask(engine, CHAT, BODY, x_request_id="one", x_envoy_ext_attempt="att_1")
    lines = read(tmp_path / "log", "one")
    assert [line["what"] for line in lines] == [
        *("start", "chunk", "token", "chunk", "token", "chunk", "chunk", "chunk", "end")
    ]
    assert {(line["attempt_id"], line["generation"], line["replica"]) for line in lines} == {
        ("att_1", 1, "a")
    }
    assert "".join(line["data"] for line in lines if line["what"] == "chunk").encode() == reply.body
    assert [line["index"] for line in lines if line["what"] == "token"] == [0, 1]
    assert lines[-1]["ended"] == "done"
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert began <= times[0]
    assert times[-1] <= time.monotonic()
    assert "secret" not in (tmp_path / "log").read_text()


async def test_a_client_that_has_gone_ends_its_lines(start_engine: StartEngine, tmp_path: Path) -> None:
    engine = await start_engine(event_log=str(tmp_path / "log"))
    connection = await Connection.open(engine.port)
    connection.writer.write(build_request(CHAT, BODY, {"x-request-id": "one", "x-sim-fault": "hang_after=1"}))
    await connection.read_until(b'"content":"a.1.0 "')
    await connection.close()
    await engine.state.wait_until(lambda: engine.state.cancelled == 1)
    assert [line["ended"] for line in read(tmp_path / "log", "one") if line["what"] == "end"] == [
        "client_disconnected"
    ]


async def test_a_killed_process_leaves_its_lines_and_its_next_life_goes_on_behind_them(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    engine = SimProcess(SimOptions(tokens=3, event_log=str(log)))
    await engine.start()
    try:
        lost = await ask(engine.options.port, CHAT, BODY, x_request_id="one", fault="die_after=1:kill")
        await engine.wait_dead()
        await engine.start()
        await ask(engine.options.port, CHAT, BODY, x_request_id="two")
    finally:
        await engine.kill()
    first, second = read(log, "one"), read(log, "two")
    assert "".join(line["data"] for line in first if line["what"] == "chunk").encode() == lost.body
    assert [line["ended"] for line in first if line["what"] == "end"] == ["killed"]
    assert second[-1]["ended"] == "done"
    assert first[0]["generation"] != second[0]["generation"]


async def test_without_a_path_nothing_is_written(start_engine: StartEngine, tmp_path: Path) -> None:
    await ask(await start_engine(), CHAT, BODY)
    assert list(tmp_path.iterdir()) == []


async def test_the_text_of_a_seed_is_the_same_at_every_replica_and_differs_by_seed_and_by_body(
    start_engine: StartEngine,
) -> None:
    async def read_text(body: dict[str, Any], **options: Any) -> str:
        reply = await ask(await start_engine(tokens=4, **options), CHAT, body)
        return str(reply.json["choices"][0]["message"]["content"])

    whole = {**BODY, "stream": False}
    text = await read_text(whole, seed="7", name="a")
    assert len(text.split()) == 4
    assert await read_text(whole, seed="7", name="b", first_generation=9) == text
    assert await read_text(whole, seed="8", name="a") != text
    assert await read_text({**whole, "user": "x"}, seed="7", name="a") != text


async def test_a_revision_stands_in_every_event(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(revision="w-3"), CHAT, BODY)
    events = [line for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    assert {json.loads(event.removeprefix("data: "))["system_fingerprint"] for event in events} == {"w-3"}
