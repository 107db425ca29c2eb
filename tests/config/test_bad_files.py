"""Every way to write a bad configuration is a file in `bad/`; its first lines say what must be said of it.

A line `# -> pools[0].name: ...` is one expected mistake, without the file's name in front.
"""

from pathlib import Path

import pytest

from envoy_ext.config import load_config
from envoy_ext.domain.errors import ConfigError

BAD = Path(__file__).parent / "bad"


def read_expected(path: Path) -> list[str]:
    return [
        f"{path.name}: {line.removeprefix('# -> ')}"
        for line in path.read_text().splitlines()
        if line.startswith("# -> ")
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in BAD.glob("*.yaml")))
def test_a_bad_file_is_refused_with_one_line_for_each_mistake(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(BAD)
    expected = read_expected(BAD / name)
    assert expected, "the file does not say what is expected of it"
    with pytest.raises(ConfigError) as refused:
        load_config(name)
    assert refused.value.mistakes == expected


def test_no_line_repeats_a_secret_that_stands_in_a_wrong_place() -> None:
    for path in BAD.glob("*.yaml"):
        assert not any("pa55" in line for line in read_expected(path)), path.name


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert refused.value.mistakes == [f"{path}: cannot be read: No such file or directory"]


def test_a_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path)
    assert refused.value.mistakes == [f"{tmp_path}: cannot be read: Is a directory"]


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"pools: \xff")
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert refused.value.mistakes == [f"{path}: not UTF-8 at byte 7"]


def test_control_characters_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"pools: \x00")
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert refused.value.mistakes == [f"{path}: character 7: special characters are not allowed"]
