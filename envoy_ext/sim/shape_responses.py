"""`/v1/responses`: named events, numbered, and `response.completed` as the only mark of success."""

from typing import Any

from envoy_ext.sim.answer import Answer, Event, Finish, json_event, stream_error
from envoy_ext.sim.plan import ErrorKind
from envoy_ext.sim.shape import StreamShape

# created, in_progress, output_item.added, content_part.added
_PREAMBLE_EVENTS = 4
_ERROR_CODES = {
    ErrorKind.OVERLOADED: "server_is_overloaded",
    ErrorKind.ENGINE: "server_error",
    ErrorKind.ENGINE_400: "server_error",
    ErrorKind.VALIDATION: "invalid_prompt",
}


class ResponsesShape(StreamShape):
    """The Responses API as vLLM streams it."""

    path = "/v1/responses"
    limit_keys = ("max_output_tokens",)

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._item_id = f"msg_{answer.id}"

    def preamble(self) -> list[Event]:
        running = self._response("in_progress", [])
        item = {"id": self._item_id, "type": "message", "status": "in_progress", "role": "assistant"}
        return [
            self._event("response.created", 0, {"response": running}),
            self._event("response.in_progress", 1, {"response": running}),
            self._event("response.output_item.added", 2, {"output_index": 0, "item": item | {"content": []}}),
            self._event("response.content_part.added", 3, self._place() | {"part": self._part("")}),
        ]

    def delta(self, index: int) -> Event:
        fields = self._place() | {"delta": self.answer.tokens[index], "logprobs": []}
        return self._event("response.output_text.delta", _PREAMBLE_EVENTS + index, fields)

    def finish(self, reason: Finish) -> list[Event]:
        number = _PREAMBLE_EVENTS + len(self.answer.tokens)
        text = self._place() | {"text": self.answer.text, "logprobs": []}
        part = self._place() | {"part": self._part(self.answer.text)}
        item = {"output_index": 0, "item": self._item()}
        return [
            self._event("response.output_text.done", number, text),
            self._event("response.content_part.done", number + 1, part),
            self._event("response.output_item.done", number + 2, item),
            self._event("response.completed", number + 3, {"response": self._ended(reason)}),
        ]

    def error(self, kind: ErrorKind) -> list[Event]:
        if kind is ErrorKind.TGI_OVERLOADED:
            return super().error(kind)
        error = stream_error(kind)["error"]
        assert isinstance(error, dict)
        fields = {"code": _ERROR_CODES[kind], "message": error["message"], "param": None}
        return [self._event("error", 0, fields)]

    def body(self) -> dict[str, Any]:
        return self._ended(self.answer.finish)

    def _event(self, name: str, number: int, fields: dict[str, Any]) -> Event:
        return json_event({"type": name, "sequence_number": number} | fields, name)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _item(self) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [self._part(self.answer.text)],
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"resp_{self.answer.id}",
            "object": "response",
            "created_at": self.answer.created,
            "model": self.answer.model,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {"system_fingerprint": self.answer.system_fingerprint},
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }

    def _ended(self, reason: Finish) -> dict[str, Any]:
        # vLLM names the event `response.completed` whatever the status in it is.
        status = {Finish.STOP: "completed", Finish.LENGTH: "incomplete", Finish.ABORT: "cancelled"}[reason]
        tokens, prompt = len(self.answer.tokens), self.answer.prompt_tokens
        value = self._response(status, [self._item()])
        if reason is Finish.LENGTH:
            value["incomplete_details"] = {"reason": "max_output_tokens"}
        value["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        }
        return value
