"""Chat completions, legacy completions and embeddings, as vLLM 0.32 writes them."""

import base64
import struct
from typing import Any

from envoy_ext.sim.answer import Event, Finish, json_event
from envoy_ext.sim.shape import OpenAiShape, Shape


class ChatShape(OpenAiShape):
    """`/v1/chat/completions`."""

    path = "/v1/chat/completions"
    limit_keys = ("max_completion_tokens", "max_tokens")
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def preamble(self) -> list[Event]:
        choice = self._choice({"role": "assistant", "content": ""})
        return [json_event(self.chunk([choice], 0) | {"prompt_token_ids": None, "prompt_text": None})]

    def delta(self, index: int) -> Event:
        choice = self._choice({"content": self.answer.tokens[index]}) | {"token_ids": None}
        return json_event(self.chunk([choice], index + 1))

    def finish(self, reason: Finish) -> list[Event]:
        choice = self._choice({"content": ""}, reason) | {"stop_reason": None, "token_ids": None}
        events = [json_event(self.chunk([choice], len(self.answer.tokens)))]
        return [*events, json_event(self.usage_chunk())] if self.answer.include_usage else events

    def body(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.answer.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [],
            "reasoning": None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self.answer.finish,
            "stop_reason": None,
            "token_ids": None,
        }
        return self.head(self.object_name) | {
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self.answer.system_fingerprint,
            "usage": self.usage(len(self.answer.tokens)) | {"prompt_tokens_details": None},
            "prompt_logprobs": None,
            "kv_transfer_params": None,
        }

    def _choice(self, delta: dict[str, Any], reason: Finish | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


class CompletionsShape(OpenAiShape):
    """`/v1/completions`: no role chunk, the text stands in the choice itself."""

    path = "/v1/completions"
    object_name = "text_completion"
    chunk_name = "text_completion"
    id_prefix = "cmpl"

    def preamble(self) -> list[Event]:
        return []

    def delta(self, index: int) -> Event:
        return json_event(self.chunk([self._choice(self.answer.tokens[index], None)], index + 1))

    def finish(self, reason: Finish) -> list[Event]:
        events = [json_event(self.chunk([self._choice("", reason)], len(self.answer.tokens)))]
        return [*events, json_event(self.usage_chunk())] if self.answer.include_usage else events

    def body(self) -> dict[str, Any]:
        choice = self._choice(self.answer.text, self.answer.finish) | {"prompt_logprobs": None}
        return self.head(self.object_name) | {
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self.answer.system_fingerprint,
            "usage": self.usage(len(self.answer.tokens)) | {"prompt_tokens_details": None},
            "kv_transfer_params": None,
        }

    def _choice(self, text: str, reason: Finish | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}


class EmbeddingsShape(Shape):
    """`/v1/embeddings`: a short vector made from the input, the same on every replica; never a stream."""

    path = "/v1/embeddings"
    limit_keys = ()

    def body(self) -> dict[str, Any]:
        answer = self.answer
        vector = [byte / 256 for byte in answer.fingerprint[:16]]
        packed = struct.pack(f"<{len(vector)}f", *vector)
        embedding = base64.b64encode(packed).decode() if answer.base64 else vector
        return {
            "id": f"embd-{answer.id}",
            "object": "list",
            "created": answer.created,
            "model": answer.model,
            "data": [{"index": 0, "object": "embedding", "embedding": embedding}],
            "system_fingerprint": answer.system_fingerprint,
            "usage": {
                "prompt_tokens": answer.prompt_tokens,
                "total_tokens": answer.prompt_tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }
