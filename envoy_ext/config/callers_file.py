"""The file of callers that `callers.keys_file` names. It is read again when it changes, so a bad one is told
in lines and never taken."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from envoy_ext.config.mistakes import Location, describe_errors, format_location
from envoy_ext.config.reading import read_yaml
from envoy_ext.config.section import ListOf, Matching, NotEmpty, Section, Word
from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.ids import PoolName

MAX_FILE_BYTES: Final = 16 << 20
CALLER_NAME: Final = Matching(
    r"[!-+\--~]{1,128}", "1 to 128 printable ASCII characters without blanks and commas"
)
DIGEST: Final = Matching(
    r"[0-9a-f]{64}", "a SHA-256 in 64 hexadecimal digits, as envoy-ext callers new prints it"
)


def _parse_moment(value: object) -> float:
    """A day ends its callers' right at its beginning, in UTC; a time says its zone or means UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC).timestamp()
    raise PydanticCustomError("moment", "must be a day or a time, such as 2027-01-31 or 2027-01-31T12:00:00Z")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


class CallerRow(Section):
    """One caller. What is not given of its rights is everything."""

    name: Annotated[str, CALLER_NAME]
    sha256: Annotated[ListOf[Annotated[str, DIGEST]], BeforeValidator(_as_list)] = ()
    """Of its key; of several, while one takes another's place. () for one that a trusted header names."""
    models: Annotated[ListOf[Word], NotEmpty()] | None = None
    pools: Annotated[ListOf[PoolName], NotEmpty()] | None = None
    classes: Annotated[ListOf[str], NotEmpty()] | None = None
    """It may name these in x-request-class; the first is that of a request that names none."""
    data_classes: Annotated[ListOf[str], NotEmpty()] | None = None
    expires: Annotated[float, BeforeValidator(_parse_moment)] | None = None
    disabled: bool = False


class CallersFile(Section):
    """All of the file."""

    callers: Annotated[ListOf[CallerRow], NotEmpty()]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names of a configuration that a file of callers may use."""

    models: frozenset[str]
    pools: frozenset[str]
    classes: frozenset[str]
    data_classes: frozenset[str]


def load_callers_file(path: str, known: Vocabulary) -> CallersFile:
    """The file's content; or a `ConfigError` with a line for each mistake, and no line with a hash."""
    try:
        raw = Path(path).read_bytes()
        text = raw.decode()
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}"]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError([f"{path}: longer than 16 MiB"])
    data, repeated = read_yaml(text, path)
    if data is None:
        raise ConfigError([f"{path}: the file is empty: it needs callers"])
    lines = list(repeated)
    loaded = None
    try:
        loaded = CallersFile.model_validate(data)
    except ValidationError as error:
        lines += _format(path, describe_errors(error, CallersFile))
    if loaded is not None:
        lines += _format(path, [*_find_repeated(loaded), *_find_unknown(loaded, known)])
    if lines or loaded is None:
        raise ConfigError(lines)
    return loaded


def find_loose_mode(path: str) -> str | None:
    """What others may do with the file that they need not; None where it is well."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None  # it is gone since it was read: whoever looks for it next tells that
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path}: others may write it, and let in whom they like: chmod 600"
    if mode & stat.S_IROTH:
        return f"{path}: everybody on this machine may read it: chmod 600"
    return None


def _format(path: str, found: list[tuple[Location, str]]) -> list[str]:
    return [
        f"{path}: {format_location(at)}: {message}" if at else f"{path}: {message}" for at, message in found
    ]


def _find_repeated(loaded: CallersFile) -> Iterator[tuple[Location, str]]:
    named: dict[str, Location] = {}
    hashes: dict[str, Location] = {}
    for number, row in enumerate(loaded.callers):
        at: Location = ("callers", number)
        first = named.setdefault(row.name, at)
        if first is not at:
            message = "this name is taken by {}: the keys of one caller stand in one list"
            yield (*at, "name"), message.format(format_location(first))
        for place, digest in enumerate(row.sha256):
            here: Location = (*at, "sha256", place)
            first = hashes.setdefault(digest, here)
            if first is not here:
                yield here, f"the same key as {format_location(first)}: nobody could tell whose it is"


def _find_unknown(loaded: CallersFile, known: Vocabulary) -> Iterator[tuple[Location, str]]:
    for number, row in enumerate(loaded.callers):
        for key, words, kind in (
            ("models", known.models, "model"),
            ("pools", known.pools, "pool"),
            ("classes", known.classes, "class of admission.classes"),
            ("data_classes", known.data_classes, "class of data_classes"),
        ):
            given: Any = getattr(row, key) or ()
            for place, word in enumerate(given):
                if word not in words:
                    yield ("callers", number, key, place), f"names no {kind} of this configuration"
