"""`/generate_stream`: text-generation-inference's own stream, `data:` without a space and no `[DONE]`."""

from collections.abc import Mapping
from typing import Any

from envoy_ext.sim.answer import Event, Finish, json_event
from envoy_ext.sim.plan import ErrorKind
from envoy_ext.sim.shape import StreamShape

_FINISH_REASONS = {Finish.STOP: "eos_token", Finish.LENGTH: "length", Finish.ABORT: "abort"}
_ERRORS = {
    ErrorKind.OVERLOADED: ("Model is overloaded", "overloaded"),
    ErrorKind.ENGINE: ("Request failed during generation: Server error: CUDA out of memory", "generation"),
    ErrorKind.ENGINE_400: (
        "Request failed during generation: Server error: CUDA out of memory",
        "generation",
    ),
    ErrorKind.VALIDATION: ("Input validation error: `inputs` cannot be empty", "validation"),
}


class TgiShape(StreamShape):
    """TGI's native stream: its last token event carries `generated_text`."""

    path = "/generate_stream"

    @classmethod
    def asks_stream(cls, _body: Mapping[str, Any]) -> bool:
        return True

    @classmethod
    def read_limit(cls, body: Mapping[str, Any]) -> Any:
        parameters = body.get("parameters")
        return parameters.get("max_new_tokens") if isinstance(parameters, dict) else None

    def preamble(self) -> list[Event]:
        return []

    def delta(self, index: int) -> Event:
        return self._token(index + 1, self.answer.tokens[index], None, None)

    def finish(self, reason: Finish) -> list[Event]:
        details = {
            "finish_reason": _FINISH_REASONS[reason],
            "generated_tokens": len(self.answer.tokens),
            "seed": None,
            "input_length": self.answer.prompt_tokens,
        }
        # The end-of-sequence token: special, and not part of the text.
        return [self._token(len(self.answer.tokens) + 1, "</s>", self.answer.text, details)]

    def error(self, kind: ErrorKind) -> list[Event]:
        if kind is ErrorKind.TGI_OVERLOADED:
            return super().error(kind)
        message, error_type = _ERRORS[kind]
        return [json_event({"error": message, "error_type": error_type}, tight=True)]

    def body(self) -> dict[str, Any]:
        return {"generated_text": self.answer.text}

    def _token(self, number: int, text: str, generated: str | None, details: dict[str, Any] | None) -> Event:
        special = generated is not None
        token = {"id": 2 if special else 1000 + number, "text": text, "logprob": -0.5, "special": special}
        value = {"index": number, "token": token, "generated_text": generated, "details": details}
        return json_event(value, tight=True)
