"""What the scenarios play on, and the words they check with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from real_engines.client import Seen
from real_engines.engine import Engine, Replica
from real_engines.gateway import Gateway

Checks = dict[str, bool]
CHAT = "/v1/chat/completions"


@dataclass
class Stage:
    """A gateway over two replicas of one engine."""

    engine: Engine
    gateway: Gateway
    replicas: dict[str, Replica]

    @property
    def stale_s(self) -> float:
        """How old a page may be, by the example's config."""
        return self.gateway.stale_s

    def other(self, replica: Replica) -> Replica:
        return next(one for one in self.replicas.values() if one is not replica)

    def ask(self, content: str, **fields: Any) -> dict[str, Any]:
        """A request with the same answer on every replica."""
        return {
            "model": self.engine.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": 24,
            **self.engine.request,
            **fields,
        }

    def ask_stream(self, content: str, **fields: Any) -> dict[str, Any]:
        return self.ask(content, stream=True, stream_options={"include_usage": True}, **fields)

    def ask_some(self) -> dict[str, Any]:
        """An answer of a few seconds."""
        return self.ask_stream("Tell me a story.", max_tokens=self.engine.some_tokens, ignore_eos=True)

    def ask_long(self) -> dict[str, Any]:
        """An answer of many seconds, so that what is done meanwhile falls into it."""
        return self.ask_stream(
            "Tell me a long story.", max_tokens=self.engine.long_answer_tokens, ignore_eos=True
        )


@dataclass
class Outcome:
    """What came of one scenario."""

    client: str
    gateway: str
    checks: Checks


Scenario = Callable[[Stage], Outcome]


def tell_journal(operation: dict[str, Any]) -> str:
    """What the journal says, in a line."""
    reason = (operation["error"] or {}).get("reason")
    end = f"{operation['state']}, {operation['ending']}" + (f" ({reason})" if reason else "")
    attempts = [f"{one['attempt']} at {one['replica']}: {one['outcome']}" for one in operation["attempts"]]
    return f"{end}; {', '.join(attempts)}"


def read_outcomes(operation: dict[str, Any]) -> list[str]:
    return [attempt["outcome"] for attempt in operation["attempts"]]


def check_whole(seen: Seen, operation: dict[str, Any], alone: Seen, attempts: int) -> Checks:
    """One whole answer, the very one that a replica gives."""
    tokens = (seen.usage or {}).get("completion_tokens")
    return {
        "one complete answer, with its [DONE]": seen.complete,
        "the same text as from a replica itself": seen.text == alone.text != "",
        f"x-attempt-count is {attempts}": seen.headers.get("x-attempt-count") == str(attempts),
        f"attempts = {attempts} in the journal": len(operation["attempts"]) == attempts,
        "the journal says completed": (operation["state"], operation["ending"]) == ("completed", "finished"),
        "client and journal count the same deltas": seen.deltas == operation["delivered_deltas"] > 0,
        "the journal has the engine's count of tokens": tokens == operation["delivered_output_tokens"],
    }


def check_replayed(seen: Seen, operation: dict[str, Any], alone: Seen, victim: Replica) -> Checks:
    """One whole answer, from the replica that was not killed."""
    replicas = [attempt["replica"] for attempt in operation["attempts"]]
    return {
        **check_whole(seen, operation, alone, 2),
        "one died, one answered": read_outcomes(operation) == ["replica_died", "completed"],
        "the one that was killed came first": replicas[:1] == [victim.name] and replicas[-1] != victim.name,
    }


def check_interrupted(seen: Seen, operation: dict[str, Any], alone: Seen, reason: str) -> Checks:
    """The begin of an answer, then the truth about its end, once."""
    error = seen.errors[0] if seen.errors else {}
    recorded = operation["error"] or {}
    return {
        "part of the answer came": seen.deltas >= 20 and not seen.finish,
        "the begin of the answer that a replica itself gives": alone.text.startswith(seen.text),
        "then exactly one error event, and nothing after it": len(seen.errors) == 1 and seen.after_error == 0,
        "no [DONE] and no cut": not seen.done and not seen.cut,
        "code upstream_decode_interrupted": error.get("code") == "upstream_decode_interrupted",
        f"reason {reason}": error.get("reason") == reason,
        "it says that part was delivered": error.get("partial_output") is True,
        "it counts what was delivered": error.get("delivered_output_tokens") == seen.deltas,
        "the journal has the same code": recorded.get("code") == "upstream_decode_interrupted",
        "the journal has the same reason": recorded.get("reason") == reason,
        "the journal says failed": (operation["state"], operation["ending"]) == ("failed", "upstream_broke"),
        "client and journal count the same deltas": seen.deltas == operation["delivered_deltas"],
    }
