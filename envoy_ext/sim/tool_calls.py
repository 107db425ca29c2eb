"""A server-side tool of a simulated engine: what a request asks it to call before its first delta, and how.

    x-sim-tool: {"url": "http://127.0.0.1:8081/mail/send", "arguments": {"to": "a"}}

A value is one call, or a list of turns; a turn is one call, or a list of calls made at once. A call with an
`attempt` is made by that attempt alone. As real engines do, it numbers each call anew (`tool_call_id`),
and goes on with its answer whatever comes of the call.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from envoy_ext.domain.names import ATTEMPT, OPERATION, TOOL_REPLAYED
from envoy_ext.sim.faults import FaultError

TOOL_HEADER: Final = "x-sim-tool"
TOOL_FIELD: Final = "sim_tool"
"""The same as a field of the body, for requests whose headers do not come this far, such as those of jobs."""
_COMMON_NAMES: Final = {OPERATION: "x-operation-id", ATTEMPT: "x-attempt-id"}


@dataclass(frozen=True, slots=True)
class SimToolCall:
    """One call that an engine makes."""

    url: str
    arguments: Any = None
    """A JSON body; a `tool_call_id` is added to an object. None: no body."""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    attempt: int | None = None
    delay_s: float = 0.0
    """Before it is made, within its turn."""
    names: str = "ours"
    """How it says whom it is made for: `ours`, `common` (x-operation-id), `operation` (without its attempt)
    or `none`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call, as the engine saw it."""

    url: str
    status: int
    """0 for a connection that failed."""
    replayed: bool
    headers: dict[str, str]
    body: str


Turns = tuple[tuple[SimToolCall, ...], ...]


def parse_tool_calls(text: str) -> Turns:
    """What the header asks for; raises `FaultError` with a line that a person can use."""
    if not text:
        return ()
    try:
        value = json.loads(text)
        turns = value if isinstance(value, list) else [value]
        return tuple(
            tuple(SimToolCall(**one) for one in (turn if isinstance(turn, list) else [turn]))
            for turn in turns
        )
    except (ValueError, TypeError):
        raise FaultError(
            f'{TOOL_HEADER}: write {{"url": "http://…", "arguments": {{…}}}}, or a list of them'
        ) from None


async def call_tools(turns: Turns, attempt: int, given: Mapping[str, str]) -> list[ToolResult]:
    """Make the calls, turn by turn, in the name of the request with these headers."""
    results: list[ToolResult] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        for turn in turns:
            due = [call for call in turn if call.attempt in (None, attempt)]
            results += await asyncio.gather(*(_call(http, call, given) for call in due))
    return results


async def _call(http: aiohttp.ClientSession, call: SimToolCall, given: Mapping[str, str]) -> ToolResult:
    arguments = call.arguments
    if isinstance(arguments, dict) and "jsonrpc" not in arguments:
        arguments = {**arguments, "tool_call_id": f"call_{secrets.token_hex(4)}"}
    body = None if arguments is None else json.dumps(arguments)
    headers = {**_name(call.names, given), "content-type": "application/json", **call.headers}
    if call.delay_s:
        await asyncio.sleep(call.delay_s)
    try:
        async with http.request(call.method, call.url, data=body, headers=headers) as answer:
            text = (await answer.read()).decode(errors="replace")
            seen = {name.lower(): value for name, value in answer.headers.items()}
            return ToolResult(call.url, answer.status, seen.get(TOOL_REPLAYED) == "true", seen, text)
    except aiohttp.ClientError as error:
        return ToolResult(call.url, 0, False, {}, type(error).__name__)


def _name(names: str, given: Mapping[str, str]) -> dict[str, str]:
    passed = {name: given[name] for name in (OPERATION, ATTEMPT) if name in given}
    match names:
        case "ours":
            return passed
        case "common":
            return {_COMMON_NAMES[name]: value for name, value in passed.items()}
        case "operation":
            return {name: value for name, value in passed.items() if name == OPERATION}
        case _:
            return {}
