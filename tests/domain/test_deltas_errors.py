"""Whose fault an error event is, and that nothing of its message is kept."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.deltas import StreamError, get_event_reader
from envoy_ext.domain.outcomes import Fault

OVERLOADED, FAILED, CLIENT = Fault.ENGINE_OVERLOADED, Fault.ENGINE_FAILED, Fault.CLIENT

ERRORS = {
    # TGI, /generate_stream
    "TGI overloaded": (
        {"error": "Model is overloaded", "error_type": "overloaded"},
        (OVERLOADED, "overloaded", ""),
    ),
    "TGI overloaded, by its words alone": ({"error": "Model is overloaded"}, (OVERLOADED, "", "")),
    "TGI validation": (
        {"error": "Input validation error: x", "error_type": "validation"},
        (CLIENT, "validation", ""),
    ),
    "TGI generation": (
        {"error": "Request failed during generation: x", "error_type": "generation"},
        (FAILED, "generation", ""),
    ),
    "TGI incomplete": (
        {"error": "Incomplete generation", "error_type": "incomplete_generation"},
        (FAILED, "incomplete_generation", ""),
    ),
    # TGI, chat: 422 for everything
    "TGI chat validation": (
        {"error": {"message": "Input validation error: `inputs` tokens", "http_status_code": 422}},
        (CLIENT, "", "422"),
    ),
    "TGI chat, out of memory": (
        {
            "error": {
                "message": "Request failed during generation: CUDA out of memory",
                "http_status_code": 422,
            }
        },
        (FAILED, "", "422"),
    ),
    "TGI chat overloaded": (
        {"error": {"message": "Model is overloaded", "http_status_code": 422}},
        (OVERLOADED, "", "422"),
    ),
    # vLLM and its relatives
    "vLLM engine death": (
        {"error": {"message": "EngineCore encountered an issue.", "type": "BadRequestError", "code": 400}},
        (FAILED, "BadRequestError", "400"),
    ),
    "vLLM engine death, older": (
        {"error": {"object": "error", "message": "Background loop", "type": "BadRequestError", "code": 400}},
        (FAILED, "BadRequestError", "400"),
    ),
    "vLLM internal": (
        {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}},
        (FAILED, "InternalServerError", "500"),
    ),
    "vLLM at top level": (
        {"object": "error", "message": "m", "type": "NotFoundError", "code": 404},
        (CLIENT, "NotFoundError", "404"),
    ),
    "SGLang unavailable": (
        {"error": {"message": "Generation aborted.", "type": "SERVICE_UNAVAILABLE", "code": 503}},
        (OVERLOADED, "SERVICE_UNAVAILABLE", "503"),
    ),
    "SGLang bad request": (
        {"error": {"message": "m", "type": "BAD_REQUEST", "code": 400}},
        (CLIENT, "BAD_REQUEST", "400"),
    ),
    "SGLang native": ({"error": {"message": "m"}}, (FAILED, "", "")),
    # llama.cpp
    "llama.cpp context": (
        {"error": {"code": 400, "message": "m", "type": "exceed_context_size_error", "n_ctx": 4096}},
        (CLIENT, "exceed_context_size_error", "400"),
    ),
    "llama.cpp invalid": (
        {"error": {"code": 400, "message": "m", "type": "invalid_request_error"}},
        (CLIENT, "invalid_request_error", "400"),
    ),
    "llama.cpp loading": (
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        (OVERLOADED, "unavailable_error", "503"),
    ),
    "llama.cpp server": (
        {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}},
        (FAILED, "server_error", "500"),
    ),
    # Anthropic, Responses
    "Anthropic overloaded": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
        (OVERLOADED, "overloaded_error", ""),
    ),
    "Anthropic invalid": (
        {"type": "error", "error": {"type": "invalid_request_error", "message": "m"}},
        (CLIENT, "invalid_request_error", ""),
    ),
    "Anthropic internal": (
        {"type": "error", "error": {"type": "api_error", "message": "m"}},
        (FAILED, "api_error", ""),
    ),
    "Responses error event": (
        {"type": "error", "code": "server_error", "message": "m", "param": None},
        (FAILED, "error", "server_error"),
    ),
    "Responses rate limit": (
        {"type": "error", "code": "rate_limit_exceeded", "message": "m"},
        (OVERLOADED, "error", "rate_limit_exceeded"),
    ),
    # by code alone
    "429": ({"error": {"message": "m", "code": 429}}, (OVERLOADED, "", "429")),
    "a code in a string": ({"error": {"message": "m", "code": "503"}}, (OVERLOADED, "", "503")),
    "413": ({"error": {"message": "m", "code": 413}}, (CLIENT, "", "413")),
    "408 is the server's time": ({"error": {"message": "m", "code": 408}}, (FAILED, "", "408")),
    "424 is the server's part": ({"error": {"message": "m", "code": 424}}, (FAILED, "", "424")),
    # other shapes
    "a text": ({"error": "boom"}, (FAILED, "", "")),
    "true": ({"error": True}, (FAILED, "", "")),
    "a list": ({"error": ["boom"]}, (FAILED, "", "")),
    "beside choices": (
        {"choices": [{"delta": {"content": "x"}}], "error": {"message": "m", "type": "server_error"}},
        (FAILED, "server_error", ""),
    ),
}


@pytest.mark.parametrize(("payload", "error"), ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("family", [ApiFamily.CHAT, ApiFamily.TGI, ApiFamily.MESSAGES, ApiFamily.RESPONSES])
def test_an_error_event_states_its_fault(family, payload, error):
    facts = get_event_reader(family)(payload, "")
    assert facts.error == StreamError(*error)
    assert facts.deltas == 0


@pytest.mark.parametrize("payload", [{"error": None}, {"error": {}}, {"error": ""}, {"error": False}, {}])
def test_an_empty_error_is_none(payload):
    assert get_event_reader(ApiFamily.CHAT)(payload, "").error is None


def test_an_event_named_error_is_one_even_without_an_error_object():
    facts = get_event_reader(ApiFamily.CHAT)({"message": "m"}, "error")
    assert facts.error == StreamError(FAILED, "", "")


def test_a_failed_response_is_an_error_and_the_end():
    payload = {
        "type": "response.failed",
        "response": {"status": "failed", "error": {"code": "server_error", "message": "m"}},
    }
    facts = get_event_reader(ApiFamily.RESPONSES)(payload, "response.failed")
    assert facts.error == StreamError(FAILED, "", "server_error")
    assert facts.over
    assert get_event_reader(ApiFamily.RESPONSES)({"type": "response.failed"}, "").error is not None


def test_a_prompt_quoted_in_a_message_does_not_move_the_fault():
    error = {"message": "x: EngineCore, Model is overloaded", "type": "invalid_request_error", "code": 400}
    facts = get_event_reader(ApiFamily.CHAT)({"error": error}, "")
    assert facts.error == StreamError(CLIENT, "invalid_request_error", "400")


words = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.text(min_size=65), st.lists(st.text())
)


@given(words, words, words)
@settings(deadline=None)
def test_labels_are_short_and_plain(kind, code, message):
    error = {"type": kind, "code": code, "message": message, "x": 1}
    read = get_event_reader(ApiFamily.CHAT)({"error": error}, "").error
    assert read is not None
    for word in (read.type, read.code):
        assert re.fullmatch(r"[A-Za-z0-9_.:-]{0,64}", word)
