"""A traffic class's ladder: what is given up, in which order, before one of its requests is refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from envoy_ext.config.mistakes import Location
from envoy_ext.config.quantities import Duration
from envoy_ext.config.section import SHORT_NAME, Section
from envoy_ext.config.urls import check_web_url
from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.ids import PoolName

MAX_TEXT_BYTES: Final = 16 << 10
"""Of a fixed answer: some pages."""
LONGEST_HAND_OFF_S: Final = 3.0
"""Envoy waits five seconds for a word of ours, and the record of the operation comes first."""
HANDED_OFF: Final = "This request has been handed to a person, who will take it from here."


def _check_text(text: str) -> str:
    if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise PydanticCustomError("text", "longer than 16 KiB, which is the most a fixed answer may have")
    return text


class ShortenGeneration(Section):
    """Let an answer have at most so many tokens."""

    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)]


class ShortenContext(Section):
    """Drop the oldest turns of a conversation, by one of two rules."""

    keep_turns: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many of the last turns stay."""
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """As few turns go as make the prompt this small, by an estimate from its length."""

    @model_validator(mode="after")
    def _check_one_rule(self) -> Self:
        if (self.keep_turns is None) == (self.max_prompt_tokens is None):
            raise PydanticCustomError("rule", "needs keep_turns or max_prompt_tokens: one of the two")
        return self


class Template(Section):
    """Answer with a fixed text."""

    text: Annotated[str, Field(min_length=1), AfterValidator(_check_text)] | None = None
    file: Annotated[str, Field(min_length=1)] | None = None
    """Read at the start."""

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.text is None) == (self.file is None):
            raise PydanticCustomError("source", "needs text or file: one of the two")
        return self

    def read(self) -> str:
        """The text.

        Raises:
            ConfigError: its file cannot be read.
        """
        if self.file is None:
            return self.text or ""
        try:
            data = Path(self.file).read_bytes()
            text = data.decode().strip()
        except OSError as error:
            raise ConfigError([f"{self.file}: cannot be read: {error.strerror}"]) from error
        except UnicodeDecodeError as error:
            raise ConfigError([f"{self.file}: not UTF-8 at byte {error.start}"]) from error
        if not text or len(data) > MAX_TEXT_BYTES:
            raise ConfigError([f"{self.file}: must hold text, and at most 16 KiB of it"])
        return text


def _check_timeout(seconds: float) -> float:
    if seconds > LONGEST_HAND_OFF_S:
        raise PydanticCustomError("timeout", "longer than 3s: the client waits, and Envoy with it")
    return seconds


class HandOff(Section):
    """Tell a person, by a call that holds ids and no word of the request."""

    webhook: Annotated[
        str,
        AfterValidator(check_web_url),
        WithJsonSchema({"type": "string", "pattern": r"^https?://[^/?#@\s]+([/?]\S*)?$"}),
    ]
    text: Annotated[str, Field(min_length=1), AfterValidator(_check_text)] = HANDED_OFF
    """What the client is told."""
    timeout: Annotated[Duration, AfterValidator(_check_timeout)] = 2.0


@dataclass(frozen=True, slots=True)
class OrRefuse:
    """Annotation: a word, `job` or `refuse`, may stand for the mapping, for the schema's eyes."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"anyOf": [handler(schema), {"enum": ["job", "refuse"]}]}


class Rung(Section):
    """One rung: a mapping with one of these keys."""

    shorten_generation: ShortenGeneration | None = None
    shorten_context: ShortenContext | None = None
    pool: Annotated[PoolName, SHORT_NAME] | None = None
    """Another pool's first model answers."""
    job: Literal[True] | None = None
    """It runs later, as the section `jobs` has it, and the client comes back for the answer."""
    template: Template | None = None
    hand_off: HandOff | None = None
    refuse: Literal[True] | None = None
    """The end of every ladder, written or not."""

    @model_validator(mode="before")
    @classmethod
    def _read_word(cls, data: object) -> object:
        return {data: True} if data in ("refuse", "job") else data

    @model_validator(mode="after")
    def _check_one_key(self) -> Self:
        if len(self.model_fields_set) != 1 or getattr(self, next(iter(self.model_fields_set))) is None:
            raise PydanticCustomError("rung", "must be job, refuse, or have one key: {keys}", {"keys": _KEYS})
        return self


_RUNGS: Final = tuple(name for name in Rung.model_fields if name != "refuse")
_WITH_KEYS: Final = tuple(name for name in _RUNGS if name != "job")
_KEYS: Final = " or ".join((", ".join(_WITH_KEYS[:-1]), _WITH_KEYS[-1]))
_SHORTENING: Final = ("shorten_generation", "shorten_context")


def find_ladder_mistakes(
    ladder: object, at: Location, side_effects: object, pools: set[str], *, has_jobs: bool
) -> Iterator[tuple[Location, str]]:
    """What is wrong with the order of a ladder's rungs and with what they name, in the file's plain data."""
    if not isinstance(ladder, list):
        return
    seen: list[tuple[str, object]] = []
    for number, rung in enumerate(ladder):
        here: Location = (*at, number)
        name, value = _read_rung(rung)
        behind = [one for one, _ in seen]
        if side_effects is True and name in _RUNGS:
            yield here, "not for a class with side_effects: its operations are run as they are, or refused"
        elif "refuse" in behind:
            yield here, "stands behind refuse, which ends the ladder: it would never be tried"
        elif "template" in behind and name in _RUNGS:
            yield here, "stands behind template, which always answers: it would never be tried"
        elif name in _SHORTENING and any(one not in _SHORTENING for one in behind):
            yield here, f"{name} must stand above the others: it helps only while there is room"
        elif name != "pool" and name in behind:
            yield here, f"{name} stands above already: remove one of the two"
        elif (name, value) in seen:
            yield here, "this pool stands above already: remove one of the two"
        elif name == "job" and not has_jobs:
            yield here, "there are no jobs: add a section jobs, such as jobs: {}, or remove this rung"
        elif name == "pool" and isinstance(value, str) and value not in pools:
            yield (*here, "pool"), "no pool has this name"
        seen.append((name, value))


def _read_rung(rung: object) -> tuple[str, object]:
    if isinstance(rung, dict) and len(rung) == 1:
        name, value = next(iter(rung.items()))
        return (str(name), value)
    return (rung, None) if isinstance(rung, str) else ("", None)
