"""`envoy-ext callers`: a key is shown once, and only its hash is for the file."""

from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from envoy_ext.cli.callers import KEY_BYTES
from envoy_ext.cli.commands import cli
from tests.support.callers import write_callers


def make(name: str) -> tuple[str, str]:
    """What stands on stdout and on stderr."""
    result = CliRunner().invoke(cli, ["callers", "new", name])
    assert result.exit_code == 0
    return result.stdout, result.stderr


@pytest.mark.parametrize("name", ["team-a", "no", "1e3", "@a", "it's", "auth0|5f"])
def test_the_lines_for_the_file_are_good_and_hold_the_keys_hash(name: str) -> None:
    key, lines = make(name)
    (row,) = yaml.safe_load("callers:\n" + lines)["callers"]
    assert row == {"name": name, "sha256": sha256(key.strip().encode()).hexdigest()}
    assert key.strip() not in lines


def test_each_key_is_another_one_and_long() -> None:
    keys = {make("a")[0] for _ in range(20)}
    assert len(keys) == 20
    assert all(len(key) > KEY_BYTES * 8 / 6 for key in keys)


def test_a_name_that_no_caller_can_have_is_refused() -> None:
    assert CliRunner().invoke(cli, ["callers", "new", "a b"]).exit_code == 2


def write_config(tmp_path: Path, keys_file: str) -> Path:
    path = tmp_path / "config.yaml"
    pool = {"name": "chat", "models": ["m"], "replicas": [{"url": "http://10.0.0.1:1"}]}
    path.write_text(yaml.safe_dump({"pools": [pool], "callers": {"keys_file": keys_file}}))
    return path


def test_check_says_who_is_let_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = write_callers(
        tmp_path / "c.yaml", {"a": {}, "b": {"disabled": True}, "c": {"expires": "2020-01-01"}}
    )
    result = CliRunner().invoke(cli, ["callers", "check", "-c", str(write_config(tmp_path, keys))])
    assert result.stdout.splitlines() == ["a: let in, 1 key", "b: disabled, 1 key", "c: expired, 1 key"]
    assert result.exit_code == 0
    Path(keys).chmod(0o644)
    result = CliRunner().invoke(cli, ["callers", "check", "-c", str(write_config(tmp_path, keys))])
    assert result.exit_code == 1
    assert "chmod 600" in result.stderr


@pytest.mark.parametrize("command", [["callers", "check"], ["check"]])
def test_a_bad_file_is_told_by_both_checks(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = write_callers(tmp_path / "c.yaml", {"a": {"models": ["x"]}})
    result = CliRunner().invoke(cli, [*command, "-c", str(write_config(tmp_path, keys))])
    assert str(result.exception) == f"{keys}: callers[0].models[0]: names no model of this configuration"
