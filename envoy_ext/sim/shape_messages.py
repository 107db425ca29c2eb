"""`/v1/messages`: the Anthropic stream, `message_stop` as its end."""

from typing import Any

from envoy_ext.sim.answer import Event, Finish, json_event, stream_error
from envoy_ext.sim.plan import ErrorKind
from envoy_ext.sim.shape import StreamShape

_STOP_REASONS = {Finish.STOP: "end_turn", Finish.LENGTH: "max_tokens", Finish.ABORT: "abort"}
_ERROR_TYPES = {
    ErrorKind.OVERLOADED: "overloaded_error",
    ErrorKind.ENGINE: "api_error",
    ErrorKind.ENGINE_400: "api_error",
    ErrorKind.VALIDATION: "invalid_request_error",
}


class MessagesShape(StreamShape):
    """The Messages API."""

    path = "/v1/messages"

    def preamble(self) -> list[Event]:
        message = self._message([], None) | {"usage": self._usage(1)}
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return [
            self._event("message_start", {"message": message}),
            self._event("content_block_start", block),
            self._event("ping", {}),
        ]

    def delta(self, index: int) -> Event:
        delta = {"type": "text_delta", "text": self.answer.tokens[index]}
        return self._event("content_block_delta", {"index": 0, "delta": delta})

    def finish(self, reason: Finish) -> list[Event]:
        delta = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}
        usage = {"output_tokens": len(self.answer.tokens)}
        return [
            self._event("content_block_stop", {"index": 0}),
            self._event("message_delta", {"delta": delta, "usage": usage}),
        ]

    def done(self) -> list[Event]:
        return [self._event("message_stop", {})]

    def error(self, kind: ErrorKind) -> list[Event]:
        if kind is ErrorKind.TGI_OVERLOADED:
            return super().error(kind)
        error = stream_error(kind)["error"]
        assert isinstance(error, dict)
        return [self._event("error", {"error": {"type": _ERROR_TYPES[kind], "message": error["message"]}})]

    def body(self) -> dict[str, Any]:
        content = [{"type": "text", "text": self.answer.text}]
        message = self._message(content, _STOP_REASONS[self.answer.finish])
        return message | {"usage": self._usage(len(self.answer.tokens))}

    def _event(self, name: str, fields: dict[str, Any]) -> Event:
        return json_event({"type": name} | fields, name)

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{self.answer.id}",
            "type": "message",
            "role": "assistant",
            "model": self.answer.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "system_fingerprint": self.answer.system_fingerprint,
        }

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        return {"input_tokens": self.answer.prompt_tokens, "output_tokens": output_tokens}
