"""Every mistake in a file of callers is one line that names its place, and never a hash or a key."""

from pathlib import Path

import pytest

from envoy_ext.config import Vocabulary, find_loose_mode, load_callers_file, parse_config
from envoy_ext.domain.errors import ConfigError
from envoy_ext.wiring.callers import read_callers

A, B = "a" * 64, "b" * 64
KNOWN = Vocabulary(
    frozenset({"m", "n"}), frozenset({"chat"}), frozenset({"default", "batch"}), frozenset({"default"})
)


def read_mistakes(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "callers.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_callers_file(str(path), KNOWN)
    return [line.removeprefix(f"{path}: ") for line in refused.value.mistakes]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["the file is empty: it needs callers"]),
        ("callers: []", ["callers: must hold at least one entry"]),
        ("[" * 5_000, ["is nested too deeply"]),
        (
            "callers: [{name: a, disabled: !!bool maybe}]",
            ["a value does not fit the tag (!!…) before it: remove that"],
        ),
        (
            "callers: [{name: a, expires: !!timestamp never}]",
            ["a value does not fit the tag (!!…) before it: remove that"],
        ),
        (
            f"callers: [{{name: a b, sha256: {A}}}]",
            ["callers[0].name: must be 1 to 128 printable ASCII characters without blanks and commas"],
        ),
        (
            "callers: [{name: a, sha256: sk-pa55word-in-clear}]",
            [
                "callers[0].sha256[0]: must be a SHA-256 in 64 hexadecimal digits, "
                "as envoy-ext callers new prints it"
            ],
        ),
        (
            f"callers: [{{name: a, sha256: {A}}}, {{name: b, sha256: [{B}, {A}]}}]",
            ["callers[1].sha256[1]: the same key as callers[0].sha256[0]: nobody could tell whose it is"],
        ),
        (
            f"callers: [{{name: a, sha256: {A}}}, {{name: a, sha256: {B}}}]",
            ["callers[1].name: this name is taken by callers[0]: the keys of one caller stand in one list"],
        ),
        (
            "callers: [{name: a, models: [m, x], pools: [y], classes: [z], data_classes: [w]}]",
            [
                "callers[0].models[1]: names no model of this configuration",
                "callers[0].pools[0]: names no pool of this configuration",
                "callers[0].classes[0]: names no class of admission.classes of this configuration",
                "callers[0].data_classes[0]: names no class of data_classes of this configuration",
            ],
        ),
        (
            f"callers: [{{name: a, sha256: {A}, expires: soon, models: []}}]",
            [
                "callers[0].models: must hold at least one entry",
                "callers[0].expires: must be a day or a time, such as 2027-01-31 or 2027-01-31T12:00:00Z",
            ],
        ),
        (
            f"callers: [{{name: a, sha256: {A}, modls: [m]}}]",
            ["callers[0].modls: unknown key; did you mean models?"],
        ),
        (
            f"callers: [{{name: a, name: b, sha256: {A}}}]",
            ["line 1, column 21: the key name stands here and in line 1: keep one of the two"],
        ),
        (
            f"callers: [{{name: a, sha256: {A}",
            ["line 1, column 93: expected ',' or '}', but got '<stream end>'"],
        ),
    ],
)
def test_a_bad_file_is_told_in_lines(tmp_path: Path, text: str, lines: list[str]) -> None:
    found = read_mistakes(tmp_path, text)
    assert found == lines
    assert not any("pa55" in line or A in line for line in found)


def test_a_file_that_is_not_there_or_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "callers.yaml"
    for prepare, end in (
        (lambda: None, "cannot be read: No such file or directory"),
        (lambda: path.write_bytes(b"\xff"), "not UTF-8 at byte 0"),
    ):
        prepare()
        with pytest.raises(ConfigError) as refused:
            load_callers_file(str(path), KNOWN)
        assert refused.value.mistakes == [f"{path}: {end}"]


@pytest.mark.parametrize(
    ("mode", "word"), [(0o600, None), (0o640, None), (0o644, "read"), (0o660, "write"), (0o602, "write")]
)
def test_a_file_that_others_may_read_or_write_is_told(tmp_path: Path, mode: int, word: str | None) -> None:
    path = tmp_path / "callers.yaml"
    path.write_text("x")
    path.chmod(mode)
    found = find_loose_mode(str(path))
    assert (found is None) == (word is None)
    assert word is None or word in str(found)


def test_a_file_that_has_gone_since_it_was_read_stops_nobody_who_looks_after_it(tmp_path: Path) -> None:
    assert find_loose_mode(str(tmp_path / "gone.yaml")) is None


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("2027-01-31", 1801353600.0),
        ("2027-01-31T12:00:00Z", 1801396800.0),
        ("2027-01-31 12:00:00", 1801396800.0),
        ("'2027-01-31T12:00:00+02:00'", 1801389600.0),
        ("'2027-01-31'", 1801353600.0),
    ],
)
def test_a_right_ends_at_a_moment_in_utc(tmp_path: Path, given: str, moment: float) -> None:
    path = tmp_path / "callers.yaml"
    path.write_text(f"callers: [{{name: a, sha256: {A}, expires: {given}}}]")
    (row,) = load_callers_file(str(path), KNOWN).callers
    assert row.expires == moment


def test_whoever_has_every_model_of_a_pool_has_the_pool(tmp_path: Path) -> None:
    replicas = [{"url": "http://10.0.0.1:1"}]
    pools = [
        {"name": "chat", "models": ["m", "n"], "replicas": replicas},
        {"name": "code", "models": ["c"], "replicas": [{"url": "http://10.0.0.2:1"}]},
    ]
    config = parse_config({"pools": pools}, "test")
    path = tmp_path / "callers.yaml"
    path.write_text(
        f"callers: [{{name: a, sha256: {A}, models: [m]}}, {{name: b, sha256: {B}, models: [m, n]}}, "
        "{name: c, pools: [code]}, {name: d}]"
    )
    rights = {one.name: one.rights for one in read_callers(str(path), config)}
    assert {name: one.pools for name, one in rights.items()} == {
        "a": frozenset(),
        "b": {"chat"},
        "c": {"code"},
        "d": None,
    }
    assert {name: one.models for name, one in rights.items()} == {
        "a": {"m"},
        "b": {"m", "n"},
        "c": frozenset(),
        "d": None,
    }
