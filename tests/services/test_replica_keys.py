"""A pool's key is that of its file; a file that cannot be used leaves the one before it in force."""

from pathlib import Path
from typing import Any

import pytest

from envoy_ext.config import parse_config
from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.ids import PoolName
from envoy_ext.services.replica_keys import ReplicaKeys
from envoy_ext.wiring.replica_keys import KeyFile, build_replica_keys

POOL = PoolName("chat")


def build(path: Path, refused: list[Any]) -> ReplicaKeys:
    source = KeyFile(str(path), "pools[0].api_key_file")
    return ReplicaKeys({POOL: source}, lambda *told: refused.append(told))


async def test_a_key_is_read_again_when_its_file_has_changed_and_stands_still(tmp_path: Path) -> None:
    path, refused = tmp_path / "key", list[Any]()
    path.write_text("first-key\n")
    keys = build(path, refused)
    assert (keys.read(POOL), keys.read(PoolName("code")), keys.read(None)) == ("first-key", None, None)
    path.write_text("second-key-that-is-longer")
    await keys.look(POOL)
    assert keys.read(POOL) == "first-key", "whoever writes it may not have finished"
    await keys.look(POOL)
    assert keys.read(POOL) == "second-key-that-is-longer"
    path.write_text("two pa55words")
    for _ in range(4):
        await keys.look(POOL)
    assert keys.read(POOL) == "second-key-that-is-longer"
    line = f"pools[0].api_key_file: {path} must hold one key of printable ASCII without blanks and commas"
    assert refused == [(POOL, line)]
    path.unlink()
    for _ in range(2):
        await keys.look(POOL)
    assert keys.read(POOL) == "second-key-that-is-longer"
    assert "cannot be read: No such file" in refused[1][1]


@pytest.mark.parametrize("text", [b"", b"\n", b"a b", b"a,b", b"a\nb", b"\xff"])
def test_a_start_without_a_usable_key_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "key").write_bytes(text)
    pool = {
        "name": "chat",
        "models": ["m"],
        "api_key_file": str(tmp_path / "key"),
        "replicas": [{"url": "http://10.0.0.1:1"}],
    }
    with pytest.raises(ConfigError) as refused:
        build_replica_keys(parse_config({"pools": [pool]}, "test"))
    assert refused.value.mistakes[0].startswith("pools[0].api_key_file: ")
