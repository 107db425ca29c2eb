"""Plays one scenario on a stage and collects what everybody saw of it."""

import asyncio
import contextlib
import hashlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from envoy_ext.drills.scenarios.evidence import (
    Client,
    ClientEvent,
    Evidence,
    ToolLine,
    read_delta,
    read_engine_lines,
    read_json,
)
from envoy_ext.drills.scenarios.model import Act, Scenario, When
from envoy_ext.drills.scenarios.stage import Stage
from envoy_ext.operations_client import fetch_operation, fetch_operations
from envoy_ext.sim.tool_calls import TOOL_HEADER

LIMIT_S: Final = 60.0
"""No scenario takes a third of it; one that hangs is judged by what was seen until then."""
SETTLE_S: Final = 10.0
"""How long the ends of everything may take to be told."""
_LOOK_S: Final = 0.01
_HEADERS: Final = ("x-attempt-count", "x-operation-id", "x-request-id", "content-type", "retry-after")
_WORDS: Final = ("amber", "brook", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "juniper")


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sends. It follows from the seed and the scenario alone."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    tools: list[dict[str, Any]]
    """What each attempt calls, by the tool's name, and with which arguments."""

    @property
    def request_id(self) -> str:
        """By which everybody's records of it are found."""
        return self.headers["x-request-id"]


def build_request(scenario: Scenario, seed: str) -> Request:
    """The same one for the same seed, wherever and whenever it is played."""
    chance = random.Random(f"{seed}/{scenario.name}")
    name = hashlib.sha256(f"{seed}/{scenario.name}".encode()).hexdigest()[:16]
    headers = {"x-request-id": f"req-{name}"}
    if scenario.fault:
        headers["x-sim-fault"] = scenario.fault
    if scenario.request.key:
        headers["idempotency-key"] = f"key-{name}"
    prompt = " ".join(chance.choices(_WORDS, k=12))
    body = {
        "model": scenario.pool,
        "stream": True,
        "max_tokens": scenario.request.tokens,
        "seed": chance.randrange(1 << 31),
        "messages": [{"role": "user", "content": prompt}],
    }
    tools = [
        {"tool": tool, "arguments": {"number": chance.randrange(1 << 31)}} for tool in scenario.request.tools
    ]
    return Request("/v1/chat/completions", headers, body, tools)


@dataclass
class _Watched:
    """The client's side while it goes on."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[ClientEvent] = field(default_factory=list)
    refusal: dict[str, Any] | None = None
    cut: bool = False

    @property
    def deltas(self) -> int:
        return sum(bool(read_delta(event.data)) for event in self.events)

    def close(self) -> Client:
        return Client(self.status, self.headers, tuple(self.events), self.cut, self.refusal)


async def play(stage: Stage, scenario: Scenario) -> Evidence:
    """Send the request, do what the scenario does, wait for all ends. The stage is whole afterwards."""
    request, watched = build_request(scenario, stage.setting.seed), _Watched()
    try:
        stage.turn_to(scenario.request.first)
        stage.tool.behaviour.fault = "hold" if scenario.tools == "hold" else ""
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(_ask(stage, request, watched))
            tasks.create_task(_act(stage, scenario, request, watched))
    except TimeoutError:
        watched.cut = True
    try:
        operation = await _settle(stage, request)
        logs = [path.read_text() for path in stage.logs.values() if path.exists()]
        trace = [json.loads(line) for line in stage.trace]
        named = operation.get("operation_id")
        own = tuple(line for line in trace if named in (None, line["operation_id"]))
        engines = read_engine_lines(logs, request.request_id)
        tools = tuple(
            ToolLine(one.time, one.path.strip("/"), one.key or "", one.number)
            for one in stage.tool.executions
        )
        return Evidence(watched.close(), engines, operation, own, tools)
    finally:
        stage.trace.clear()
        await stage.mend()


def _read_tools(stage: Stage) -> tuple[ToolLine, ...]:
    done = stage.tool.executions
    return tuple(ToolLine(one.time, one.path.strip("/"), one.key or "", one.number) for one in done)


async def _ask(stage: Stage, request: Request, watched: _Watched) -> None:
    url = stage.stack.ingress_url + request.path
    try:
        async with stage.http.post(url, json=request.body, headers=_name_tools(stage, request)) as answer:
            watched.status = answer.status
            watched.headers |= {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
            if answer.content_type != "text/event-stream":
                error = read_json((await answer.read()).decode(errors="replace")).get("error")
                watched.refusal = error if isinstance(error, dict) else None
                return
            # Line by line, by no parser of the product's: what that misreads must not be misread here.
            async for line in answer.content:
                if line.startswith(b"data:"):
                    data = line.decode().removeprefix("data:").removeprefix(" ").rstrip("\n")
                    watched.events.append(ClientEvent(time.monotonic(), data))
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        watched.cut = True


def _name_tools(stage: Stage, request: Request) -> dict[str, str]:
    """The headers, with the calls that the engines are to make, and where."""
    calls = [
        {"url": f"{stage.stack.tools_url}/{call['tool']}", "arguments": call["arguments"]}
        for call in request.tools
    ]
    return {**request.headers, **({TOOL_HEADER: json.dumps(calls)} if calls else {})}


async def _act(stage: Stage, scenario: Scenario, request: Request, watched: _Watched) -> None:
    if scenario.request.first is not None:
        await _wait_logged(stage, request, "start")
        stage.turn_to(None)
    for act in scenario.acts:
        await _wait_moment(stage, act.when, request, watched)
        await _do(stage, act, request)


async def _wait_moment(stage: Stage, when: When, request: Request, watched: _Watched) -> None:
    if when.engine is not None:
        await _wait_logged(stage, request, when.engine)
    if when.tools_acted is not None:
        await stage.tool.wait_executions(when.tools_acted)
    while when.client_has is not None and watched.deltas < when.client_has:
        await asyncio.sleep(_LOOK_S)


async def _wait_logged(stage: Stage, request: Request, what: str) -> None:
    while not any(line["what"] == what for line in _read_lines(stage, request)):
        await asyncio.sleep(_LOOK_S)


async def _do(stage: Stage, act: Act, request: Request) -> None:
    match act.do:
        case "cut":
            await stage.cut_network()
        case "heal":
            await stage.heal_network()
        case "kill":
            last = [line for line in _read_lines(stage, request) if line["what"] == "start"][-1]
            # The dead write nothing: whoever kills it says so in its log, before anybody can notice.
            line = {**last, "time": time.monotonic(), "what": "end", "ended": "killed"}
            with stage.logs[last["replica"]].open("a") as log:
                log.write(json.dumps(line) + "\n")
            await stage.engines[last["replica"]].kill()


def _read_lines(stage: Stage, request: Request) -> list[dict[str, Any]]:
    """What the engines have logged of the request so far; a line that is half written is left out."""
    lines: list[dict[str, Any]] = []
    for path in stage.logs.values():
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        lines += [json.loads(line) for line in whole.splitlines()]
    own = [line for line in lines if line["request_id"] == request.request_id]
    return sorted(own, key=lambda line: float(line["time"]))


async def _settle(stage: Stage, request: Request) -> dict[str, Any]:
    """The operation, once journal and engines have told every end, or as far as they have."""
    operation: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while not operation or not _is_over(operation, _read_lines(stage, request)):
                for listed in await fetch_operations(stage.stack.operations_url, 20):
                    if listed["request_id"] == request.request_id:
                        operation = await fetch_operation(stage.stack.operations_url, listed["operation_id"])
                await asyncio.sleep(_LOOK_S)
            await stage.stack.app.exchanges.wait_idle()
    return operation


def _is_over(operation: dict[str, Any], lines: list[dict[str, Any]]) -> bool:
    begun = {line["attempt_id"] for line in lines if line["what"] == "start"}
    ended = {line["attempt_id"] for line in lines if line["what"] == "end"}
    told = operation["ended_at"] and all(attempt["ended_at"] for attempt in operation["attempts"])
    return bool(told) and begun <= ended
