"""Requests, chunks and policies for tests of the exchange, in the project's words and without protobuf."""

import json
from dataclasses import replace

from envoy_ext.domain.api import ApiFamily, RequestFacts
from envoy_ext.domain.events import RequestArrived, Target
from envoy_ext.domain.exchange_shared import ExchangePolicy, Identity
from envoy_ext.domain.ids import ExchangeId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.retry import FailoverPolicy

POOL = PoolName("chat")
SMALL = PoolName("small")
"""Another one that its data may reach."""
OPERATION = OperationId("op_1")

SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"
JSON = "application/json"

# --- requests ---------------------------------------------------------------------------------


def identity() -> Identity:
    return Identity(
        ExchangeId("exg_1"), OPERATION, "req-1", POOL, frozenset({POOL, SMALL}), caller="caller-hash"
    )


def Req(
    family: ApiFamily,
    path: str,
    *,
    stream: bool = True,
    choices: int = 1,
    prompt_tokens: int = 100,
    deadline_s: float | None = None,
) -> RequestArrived:
    facts = RequestFacts(
        family=family,
        model="llama-3.1-8b",
        stream=stream,
        choices=choices,
        prompt_tokens_estimate=prompt_tokens,
        max_output_tokens=None,
    )
    return RequestArrived(facts, path, body_sha256="ab" * 32, body_bytes=512, deadline_s=deadline_s)


def ReqChat(
    *,
    stream: bool = True,
    n: int = 1,
    prompt_tokens: int = 100,
    deadline_s: float | None = None,
) -> RequestArrived:
    return Req(
        ApiFamily.CHAT,
        "/v1/chat/completions",
        stream=stream,
        choices=n,
        prompt_tokens=prompt_tokens,
        deadline_s=deadline_s,
    )


def ReqCompletions() -> RequestArrived:
    return Req(ApiFamily.COMPLETIONS, "/v1/completions")


def ReqResponses() -> RequestArrived:
    return Req(ApiFamily.RESPONSES, "/v1/responses")


def ReqMessages() -> RequestArrived:
    return Req(ApiFamily.MESSAGES, "/v1/messages")


def ReqTgi() -> RequestArrived:
    return Req(ApiFamily.TGI, "/generate_stream")


def ReqEmbeddings() -> RequestArrived:
    return Req(ApiFamily.EMBEDDINGS, "/v1/embeddings", stream=False)


def ReqModels() -> RequestArrived:
    return Req(ApiFamily.MODELS, "/v1/models", stream=False)


# --- what a chat stream is made of --------------------------------------------------------------


def event(payload: object, name: str = "") -> bytes:
    """One event of a stream."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(delta: dict[str, object], finish: str | None = None, *, choice: int = 0, **more: object) -> bytes:
    body = {"object": "chat.completion.chunk", **more}
    return event({**body, "choices": [{"index": choice, "delta": delta, "finish_reason": finish}]})


def role(choice: int = 0) -> bytes:
    return chunk({"role": "assistant", "content": ""}, choice=choice)


def delta(text: str, choice: int = 0, **more: object) -> bytes:
    return chunk({"content": text}, choice=choice, **more)


def finish(reason: str = "stop", choice: int = 0) -> bytes:
    return chunk({}, reason, choice=choice)


def abort() -> bytes:
    """How vLLM and SGLang say that they gave an answer up."""
    return finish("abort")


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}})


def ping() -> bytes:
    return b": ping\n\n"


def done() -> bytes:
    return b"data: [DONE]\n\n"


def engine_error() -> bytes:
    """vLLM's word for a dead engine."""
    return event({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}})


def overloaded() -> bytes:
    """TGI's word for a full queue."""
    return event({"error": "Model is overloaded", "error_type": "overloaded"})


def validation_error() -> bytes:
    """TGI's word for a request that no replica could serve."""
    return event({"error": "`inputs` must have less than 4096 tokens", "error_type": "validation"})


def answer(*texts: str) -> bytes:
    """A whole chat answer."""
    return role() + b"".join(delta(text) for text in texts) + finish() + done()


# --- policies -----------------------------------------------------------------------------------


def targets(*replicas: str) -> tuple[Target, ...]:
    return tuple(target(replica) for replica in replicas)


def target(replica: str) -> Target:
    return Target(ReplicaId(replica), f"10.0.0.{ord(replica[0])}:8000")


def Policy(
    *,
    replay: bool = True,
    max_attempts: int = 2,
    max_replay_prompt_tokens: int = 32_000,
    max_replay_delay_s: float = 20.0,
    fence_s: float = 7.0,
    log_grace_s: float = 1.0,
    **limits: object,
) -> ExchangePolicy:
    failover = FailoverPolicy(
        replay=replay,
        max_attempts=max_attempts,
        max_replay_prompt_tokens=max_replay_prompt_tokens,
        max_replay_delay_s=max_replay_delay_s,
        fence_s=fence_s,
        log_grace_s=log_grace_s,
    )
    return replace(ExchangePolicy(failover=failover), **limits)  # type: ignore[arg-type]
