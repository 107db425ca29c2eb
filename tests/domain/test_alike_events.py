"""Events that are recognised without being parsed say what they would have said."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain import inspection
from envoy_ext.domain.alike_events import AlikeEvents
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.deltas import EventFacts
from envoy_ext.domain.inspection import BodyKind, Inspector
from tests.domain.inspecting import observe

SSE, NDJSON = BodyKind.SSE, BodyKind.NDJSON
CHAT = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
SGLANG = (
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":"%s",'
    b'"tool_calls":null},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
STAMPED = b'data: {"system_fingerprint":"b1","choices":[{"index":0, "delta": {"content": "%s"}}]}\n\n'
SECOND = b'data: {"id":"c1","choices":[{"index":1,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
ARGUMENTS = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}]}\n\n'
)
TEXT = b'data: {"id":"c1","object":"text_completion","choices":[{"index":0,"text":"%s"}]}\n\n'
CRLF = b'data: {"choices":[{"index":0,"text":"%s"}]}\r\n\r\n'
LINES = b'data: {"choices":\ndata: [{"index":0,"text":"%s"}]}\n\n'
MESSAGES = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n'
)
RESPONSES = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%s"}\n\n'
SGLANG_NATIVE = b'data: {"text":"%s","meta_info":{"id":"1","finish_reason":null}}\n\n'
OLLAMA = b'{"model":"m","message":{"role":"assistant","content":"%s"},"done":false}\n'
FRAMES = {
    "chat": (ApiFamily.CHAT, SSE, [CHAT, SECOND, STAMPED, SGLANG, ARGUMENTS, LINES]),
    "completions": (ApiFamily.COMPLETIONS, SSE, [TEXT, CRLF]),
    "messages": (ApiFamily.MESSAGES, SSE, [MESSAGES]),
    "responses": (ApiFamily.RESPONSES, SSE, [RESPONSES]),
    "generate": (ApiFamily.TGI, SSE, [SGLANG_NATIVE]),
    "generic": (ApiFamily.OTHER, NDJSON, [OLLAMA]),
}
OTHER_EVENTS = [
    b": ping\n\n",
    b"\n",
    b"\r",
    b"data: [DONE]\n\n",
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n',
    b'data: {"error":{"message":"gone","code":500}}\n\n',
    b'data: {"system_fingerprint":"b2","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
    b"\xef\xbb\xbf",
    b"event: error\n",
    b"data: {broken\n\n",
]
words = st.one_of(
    st.sampled_from([b"a", b" the", b"Hel", b"\\n", b'\\"', b"\\u00e9", b"\\ud83d", b"\xc3\xa9"]),
    st.sampled_from(
        [b"", b'"', b'"}', b"\\", b"\\x", b"\\u12", b"\n", b"\n\n", b"\r", b"\x00", b"\t", b"\xe2\x82"]
    ),
    st.sampled_from(
        [b'","finish_reason":"stop', b'"},"finish_reason":"stop"}]}\n\ndata: {"a":{"b":"', b"x" * 300]
    ),
    st.binary(max_size=6),
    st.text(max_size=6).map(lambda text: json.dumps(text)[1:-1].encode()),
)


class NeverAlike(AlikeEvents):
    """Recognises nothing."""

    def learn(self, event, facts, reread):
        pass


def feed_both(family, kind, chunks, limit):
    quick, slow = Inspector(family, kind, limit), Inspector(family, kind, limit)
    slow._alike = NeverAlike()
    for chunk in chunks:
        assert not slow.feed_alike(chunk)
        slow.feed(chunk)
        if quick.feed_alike(chunk):
            assert not quick.pending
        else:
            quick.feed(chunk)
        assert observe(quick) == observe(slow)
    return quick


@pytest.mark.parametrize("api", FRAMES)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_the_same_is_seen_as_by_parsing_each(api, data):
    family, kind, frames = FRAMES[api]
    body = []
    frame = frames[0]
    for _ in range(data.draw(st.integers(1, 14))):
        if data.draw(st.integers(0, 5)) == 0:
            frame = data.draw(st.sampled_from(frames))
        if data.draw(st.integers(0, 7)) == 0:
            body.append(data.draw(st.sampled_from(OTHER_EVENTS)))
        body.append(frame.replace(b"%s", data.draw(words)))
    if data.draw(st.booleans()):  # merged, and cut anywhere
        whole = b"".join(body)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
        body = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    feed_both(family, kind, body, data.draw(st.sampled_from([0, 64, 200, 1 << 20])))


def chat(content, rest=b'"finish_reason":null}]'):
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"},%s}\n\n' % (content, rest)


SAME_LENGTH = [chat(b"a"), chat(b"b"), chat(b"c"), chat(b"d", b'"finish_reason":"sp"}]'), b"data: [DONE]\n\n"]
FINISHES = [
    SECOND,
    SECOND.replace(b":1", b":2"),
    *[chat(b"a", b'"finish_reason":"stop"}]')] * 3,
    b"data: [DONE]\n\n",
]
USAGES = [chat(b"a", b'"finish_reason":null}],"usage":{"completion_tokens":3}')] * 5
ABORTS = [chat(b"a"), *[chat(b"a", b'"finish_reason":"abort"}]')] * 3]
REVISIONS = [
    *[chat(b"a", b'"finish_reason":null}],"system_fingerprint":"b1"')] * 3,
    b'data: {"choices":[],"system_fingerprint":"b2"}\n\n',
    chat(b"a", b'"finish_reason":null}],"system_fingerprint":"b1"'),
]


@pytest.mark.parametrize("events", [SAME_LENGTH, FINISHES, USAGES, ABORTS, REVISIONS])
def test_what_is_more_than_text(events):
    family, kind = ApiFamily.CHAT, SSE
    quick, slow = (Inspector(family, kind, 1 << 20, choices=3) for _ in range(2))
    slow._alike = NeverAlike()
    for event in events:
        quick.feed(event)
        slow.feed(event)
        assert observe(quick) == observe(slow)


def test_a_guess_that_changes_what_is_said_is_not_kept():
    alike, facts = AlikeEvents(), EventFacts(deltas=1, started=(0,))
    alike.learn(b'{"text":"a"}', facts, lambda changed: EventFacts(deltas=2, started=(0,)))
    assert not alike.head
    alike.learn(b'{"text":"a"}', facts, lambda changed: facts)
    assert alike.count(b'{"text":"b"}{"text":"c"}') == 2


@pytest.mark.parametrize("merged", [1, 3])
@pytest.mark.parametrize(
    ("api", "frame"), [(api, frame) for api, (_, _, frames) in FRAMES.items() for frame in frames]
)
def test_most_of_an_answer_is_not_parsed(api, frame, merged, monkeypatch):
    parsed = []
    parse = inspection._parse
    monkeypatch.setattr(inspection, "_parse", lambda data: parsed.append(data) or parse(data))
    family, kind, _ = FRAMES[api]
    inspector = Inspector(family, kind, 1 << 20)
    for number in range(40):
        inspector.feed(b"".join(frame.replace(b"%s", b"word %d" % (number + part)) for part in range(merged)))
    assert inspector.deltas == 40 * merged
    # CRLF has two bytes for each line end, and no merged event of it is looked for.
    assert len(parsed) <= (1 + merged if frame is not CRLF or merged == 1 else 40 * merged)


def test_what_is_never_alike_is_seldom_tried():
    """An engine that numbers its events, or tells a usage with each, has none that are alike."""
    inspector = Inspector(ApiFamily.RESPONSES, SSE, 1 << 20)
    frames = []
    learn = AlikeEvents.learn

    class Watched(AlikeEvents):
        def learn(self, event, facts, reread):
            learn(self, event, facts, lambda changed: frames.append(changed) or reread(changed))

    inspector._alike = Watched()
    for number in range(1000):
        inspector.feed(b'data: {"type":"response.x.delta","sequence_number":%d,"delta":"a"}\n\n' % number)
    assert inspector.deltas == 1000
    assert len(frames) < 30


def test_a_clock_in_each_event_costs_one_look_a_tick():
    """llama.cpp writes the second of each event into it."""
    parsed = 0
    inspector = Inspector(ApiFamily.CHAT, SSE, 1 << 20)
    for second in range(10):
        for _ in range(50):
            event = b'data: {"created":%d,"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' % second
            if not inspector.feed_alike(event):
                inspector.feed(event)
                parsed += 1
    assert inspector.deltas == 500
    assert parsed <= 12


def test_a_long_frame_is_not_kept():
    inspector = Inspector(ApiFamily.CHAT, SSE, 1 << 20)
    event = b'data: {"x":"%s","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' % (b"y" * 4000)
    for _ in range(5):
        assert not inspector.feed_alike(event)
        inspector.feed(event)


def test_a_hostile_word_costs_no_more_than_its_length():
    """A pattern that tries again in another way would not come back from this."""
    inspector = Inspector(ApiFamily.CHAT, SSE, 1 << 20)
    for _ in range(3):
        inspector.feed(CHAT.replace(b"%s", b"a"))
    inspector.feed(CHAT.replace(b"%s", b"a\\n" * 50_000 + b"\x01"))
    assert inspector.malformed_events == 1
