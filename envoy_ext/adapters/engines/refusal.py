"""What an answer other than 200 says about an engine.

One table for all engines, because each line is either HTTP's own meaning or bytes that only one
engine writes.
"""

import json
from typing import Final

UNSUPPORTED: Final = "unsupported"
LOADING: Final = "loading"
BAD_STATUS: Final = "bad_status"
ENGINE_DEAD: Final = "engine_dead"
DENIED: Final = "denied"
"""It wants credentials that it was not shown."""
DECLINED: Final = "declined"
"""It understood, and does not do this: completions of an embedding model, chats without a template."""
MODEL_UNKNOWN: Final = "model_unknown"
"""It does not serve a model of this name."""
BUSY: Final = "busy"
"""It has no room at the moment, as TGI says with 429."""

_MAX_ERROR_BYTES: Final = 4096
"""Of a body that is looked into; llama.cpp's has 75 bytes."""


def read_refusal(status: int, body: bytes) -> str:
    """The reason of a `ScrapeFailure` for a status and the start of its body.

    `unsupported` is a matter of how the engine was started: 501 is llama.cpp without `--metrics`
    (ERROR_TYPE_NOT_SUPPORTED in tools/server), 404 an engine that has no such page, such as SGLang
    without `--enable-metrics`. Nothing is wrong with the replica then.

    `loading` is llama.cpp's 503 until the model is in memory, on every path. vLLM's and SGLang's 503
    mean a dead or failing engine, and both have an empty body or another one.
    """
    match status:
        case 404 | 405 | 501:
            return UNSUPPORTED
        case 503 if _says_loading(body):
            return LOADING
        case _:
            return BAD_STATUS


def read_health_refusal(status: int, body: bytes) -> str:
    """The same for a health page: `engine_dead` is vLLM's 503 after its engine process died.

    It has an empty body (vllm/entrypoints/serve/instrumentator/health.py). Any other status may come from
    what stands between, such as a proxy that wants a key, and says nothing of the engine.
    """
    reason = read_refusal(status, body)
    return ENGINE_DEAD if status == 503 and reason == BAD_STATUS else reason


def read_decline(status: int, body: bytes) -> str:
    """The reason of a `ScrapeFailure` for a control call, or a look at health, that got no 200.

    The client errors that are no failure of the engine's are told apart. 404 has two meanings: no such
    path, where another form of the question may be answered, and no such model, which vLLM says with an
    error that misses the model.
    """
    match status:
        case 401 | 403:
            return DENIED
        case 404 if _misses_the_model(body):
            return MODEL_UNKNOWN
        case 408 | 429:
            return BUSY
        case _ if 400 <= status < 500 and status not in (404, 405):
            return DECLINED
        case _:
            return read_refusal(status, body)


def _says_loading(body: bytes) -> bool:
    return _read_message(body).startswith("loading")


def _misses_the_model(body: bytes) -> bool:
    """Not every word of a model says this: "the model does not support completions" is of a known one."""
    message = _read_message(body)
    return "model" in message and ("not exist" in message or "not found" in message)


def _read_message(body: bytes) -> str:
    """The message of an error object, in small letters: bare, as older vLLM has it, or under `error`."""
    try:
        answer = json.loads(body[:_MAX_ERROR_BYTES])
    except (ValueError, RecursionError):
        return ""
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message.lower() if isinstance(message, str) else ""
