"""What a repetition of a tool call has in common with the call it repeats, and what tells two calls apart."""

import json
from dataclasses import replace

import pytest

from envoy_ext.domain.json_rpc import address_answer
from envoy_ext.domain.tool_request import (
    CallIdentity,
    HttpRequest,
    NoCall,
    ToolPolicy,
    Unreadable,
    identify_call,
)

MAIL = ToolPolicy("mail")
JSON = "application/json"


def post(body: object, **changes: object) -> HttpRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = HttpRequest("POST", "/mail/send", data, JSON)
    return replace(request, **changes)  # type: ignore[arg-type]


def identify(request: HttpRequest, tool: ToolPolicy = MAIL) -> CallIdentity:
    identity = identify_call(tool, request)
    assert isinstance(identity, CallIdentity)
    return identity


def rpc(name: str = "send", method: str = "tools/call", **changes: object) -> dict[str, object]:
    params = {"name": name, "arguments": {"to": "a", "n": 1}, "_meta": {"progressToken": 7}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **changes}


SEND = post({"to": "a", "n": 1, "tool_call_id": "call_1"})


@pytest.mark.parametrize(
    "other",
    [
        post(b'{ "n": 1.0, "to":"a" }'),
        post({"to": "a", "n": 1, "tool_call_id": "call_2", "call_id": 3}),
        replace(SEND, content_type="application/json; charset=utf-8"),
        replace(SEND, content_type="application/vnd.tool+json"),
        replace(SEND, accept="*/*", mcp_session=True),
    ],
)
def test_the_same_call_written_in_another_way_is_the_same(other: HttpRequest) -> None:
    assert identify(other) == identify(SEND)


@pytest.mark.parametrize(
    "other",
    [
        post({"to": "b", "n": 1}),
        post({"to": "a", "n": True}),
        post({"to": "a", "n": 1, "id": 5}),
        post({"to": "a", "n": 1, "deep": {"call_id": 1}}),
        replace(SEND, path="/mail/send?dry=1"),
        replace(SEND, path="/mail/draft"),
        replace(SEND, method="PUT"),
        replace(SEND, content_type="text/plain"),
        replace(SEND, content_encoding="gzip"),
        post(b'{"to":"a","n":1,"n":1}'),
        post(rpc()),
    ],
)
def test_another_call_is_another(other: HttpRequest) -> None:
    assert identify(other).fingerprint != identify(SEND).fingerprint


def test_another_tool_is_another_call() -> None:
    assert identify(SEND, ToolPolicy("post")).fingerprint != identify(SEND).fingerprint


def test_an_id_among_the_arguments_is_one_of_them() -> None:
    """To delete 1 is not to delete 2; a tool whose `id` counts its calls says so."""
    one, other = post({"id": 1}), post({"id": 2})
    assert identify(one).fingerprint != identify(other).fingerprint
    counts = ToolPolicy("mail", ignored=frozenset({"id"}))
    assert identify(one, counts) == identify(other, counts)


def test_a_body_that_is_not_json_is_compared_by_its_bytes_and_its_type() -> None:
    text = HttpRequest("POST", "/mail", b"to=a", "application/x-www-form-urlencoded")
    assert identify(text) == identify(replace(text, accept="x"))
    assert identify(text).fingerprint != identify(replace(text, body=b"to=b")).fingerprint
    assert identify(text).fingerprint != identify(replace(text, content_type="text/plain")).fingerprint
    broken = post(b'{"to":')
    assert identify(broken).fingerprint != identify(post(b'{"to": ')).fingerprint


def test_a_body_that_is_nested_too_deeply_to_be_written_is_compared_by_its_bytes() -> None:
    deep = b"[" * 900 + b"]" * 900
    assert identify(post(deep)) == identify(post(deep))
    assert identify(post(deep)).fingerprint != identify(post(b"[" * 901 + b"]" * 901)).fingerprint


def test_under_a_key_of_the_callers_own_the_key_is_the_call_and_the_arguments_are_compared() -> None:
    one, other = replace(SEND, key="k1"), replace(post({"to": "b"}), key="k1")
    assert identify(one).keyed
    assert identify(one).fingerprint == identify(other).fingerprint != identify(SEND).fingerprint
    assert identify(one).arguments_sha256 != identify(other).arguments_sha256
    assert identify(replace(SEND, key="k2")).fingerprint != identify(one).fingerprint
    assert identify(one, ToolPolicy("post")).fingerprint != identify(one).fingerprint


@pytest.mark.parametrize(
    ("tool", "method", "idempotent"),
    [
        (MAIL, "GET", True),
        (MAIL, "HEAD", True),
        (MAIL, "POST", False),
        (MAIL, "PUT", False),
        (replace(MAIL, get_is_safe=False), "GET", False),
        (replace(MAIL, idempotent=True), "POST", True),
    ],
)
def test_what_may_be_done_twice(tool: ToolPolicy, method: str, idempotent: bool) -> None:
    assert identify(replace(SEND, method=method), tool).idempotent is idempotent


# --- the Model Context Protocol -------------------------------------------------------------


def test_an_mcp_call_is_known_without_its_id_and_its_meta() -> None:
    again = rpc(id="b-2", params={"arguments": {"n": 1, "to": "a", "call_id": "x"}, "name": "send"})
    one, other = identify(post(rpc())), identify(post(again))
    assert one.fingerprint == other.fingerprint
    assert (one.rpc_id, other.rpc_id) == ("1", '"b-2"')
    assert identify(post(rpc("delete"))).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    "message",
    [
        *({"jsonrpc": "2.0", "id": 1, "method": one} for one in ("initialize", "ping", "tools/list")),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": "x"}},
        {"jsonrpc": "2.0", "id": 2, "result": {"action": "accept"}},
        {"jsonrpc": "2.0", "id": 2, "error": {"code": 1}},
    ],
)
def test_what_calls_no_tool_is_not_looked_up(message: object) -> None:
    assert identify_call(MAIL, post(message)) == NoCall()


@pytest.mark.parametrize(
    "method",
    [
        *("eth_sendTransaction", "tasks/cancel", "tools/callx", "Ping", "notifications/send"),
        *("resources/delete", "prompts/", "completion/buy", "logging/purge"),
    ],
)
def test_a_method_that_is_not_known_to_be_harmless_is_a_call(method: str) -> None:
    identity = identify(post(rpc(method=method)))
    assert identity.fingerprint != identify(post(rpc())).fingerprint
    assert identity == replace(identify(post(rpc(method=method, id=9))), rpc_id="1")


@pytest.mark.parametrize(
    ("path", "climbs"),
    [
        ("/search/..%2fmail/send", True),
        ("/search/x%2F%2e%2E%2f..%2Fmail/send", True),
        ("/search/..%5Cmail/send", True),
        ("/search/..%3bx%2fmail/send", True),
        ("/search/a%2Fb", False),
        ("/search/a..b/...", False),
        ("/search?path=../..%2fmail", False),
    ],
)
def test_a_path_that_a_server_may_read_as_another_tools_is_refused(path: str, climbs: bool) -> None:
    identity = identify_call(ToolPolicy("search", idempotent=True), HttpRequest("POST", path))
    assert isinstance(identity, Unreadable) is climbs


def test_a_batch_is_refused() -> None:
    assert isinstance(identify_call(MAIL, post([rpc(), rpc(id=2)])), Unreadable)
    assert isinstance(identify_call(MAIL, post([{"a": 1}])), CallIdentity)


@pytest.mark.parametrize(
    ("request_", "listens"),
    [
        (HttpRequest("GET", "/mcp", accept="text/event-stream"), True),
        (HttpRequest("GET", "/mcp", accept="application/json"), False),
        (HttpRequest("POST", "/mcp", accept="application/json, text/event-stream"), False),
        (HttpRequest("DELETE", "/mcp", mcp_session=True), True),
        (HttpRequest("DELETE", "/files/1"), False),
        (HttpRequest("OPTIONS", "/files/1"), True),
    ],
)
def test_a_stream_to_listen_to_and_the_end_of_a_session_are_no_calls(
    request_: HttpRequest, listens: bool
) -> None:
    assert isinstance(identify_call(MAIL, request_), NoCall) is listens


@pytest.mark.parametrize(("in_session", "listens"), [(False, False), (True, True)])
def test_where_a_get_acts_what_it_accepts_makes_it_no_stream_to_listen_to(
    in_session: bool, listens: bool
) -> None:
    acts = ToolPolicy("acts", get_is_safe=False)
    request = HttpRequest("GET", "/do", accept="application/json, text/event-stream", mcp_session=in_session)
    identity = identify_call(acts, request)
    assert isinstance(identity, NoCall) is listens
    assert listens or (isinstance(identity, CallIdentity) and not identity.idempotent)


ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"n":1.50,"id":1}}'


@pytest.mark.parametrize(
    ("content_type", "body", "addressed"),
    [
        (JSON, ANSWER, b'{"jsonrpc":"2.0","id":"b-2","result":{"n":1.50,"id":1}}'),
        (JSON, b'{"jsonrpc":"2.0","error":{}}', b'{"jsonrpc":"2.0","error":{},"id":"b-2"}'),
        (JSON, b'{"result":1,"id":1}', None),
        (JSON, b"{", None),
        ("text/plain", ANSWER, None),
        (
            "text/event-stream; charset=utf-8",
            b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"method":"ping"}\r\n\r\n'
            b'id: 4\ndata:{"jsonrpc":"2.0","id":1,"result":{}}\n\n: x\ndata: half',
            b'event: message\r\ndata: {"jsonrpc":"2.0","id":1,"method":"ping"}\r\n\r\n'
            b'id: 4\ndata: {"jsonrpc":"2.0","id":"b-2","result":{}}\n\n: x\ndata: half',
        ),
    ],
)
def test_an_answer_given_again_carries_the_id_of_the_new_request_and_nothing_else_is_changed(
    content_type: str, body: bytes, addressed: bytes | None
) -> None:
    assert address_answer(content_type, body, '"b-2"') == (body if addressed is None else addressed)
