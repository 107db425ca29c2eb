"""The replicas' own keys as part of the composition.

Belongs to the composition layer, beside `app`.
"""

import logging
from pathlib import Path

from envoy_ext.config import Config
from envoy_ext.domain.callers import is_plain
from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.ids import PoolName
from envoy_ext.services.replica_keys import ReplicaKeys
from envoy_ext.wiring.file_mark import read_file_mark

log = logging.getLogger("envoy_ext")


def build_replica_keys(config: Config) -> ReplicaKeys:
    """What each pool's replicas want to be shown.

    Raises:
        ConfigError: a file cannot be used.
    """
    files = {
        pool.name: KeyFile(pool.api_key_file, f"pools[{number}].api_key_file")
        for number, pool in enumerate(config.pools)
        if pool.api_key_file is not None
    }
    return ReplicaKeys(files, _note_refused)


def _note_refused(pool: PoolName, why: str) -> None:
    log.error("replica_key_refused", extra={"pool": pool, "why": why})


class KeyFile:
    """`services.replica_keys.KeySource` of a path."""

    def __init__(self, path: str, place: str) -> None:
        self._path = path
        self._place = place

    def read_mark(self) -> object:
        return read_file_mark(self._path)

    def load(self) -> str:
        """The key, without the blanks around it. No line repeats what stands in the file."""
        try:
            key = Path(self._path).read_text(encoding="ascii").strip()
        except OSError as error:
            raise ConfigError([f"{self._place}: {self._path} cannot be read: {error.strerror}"]) from None
        except UnicodeDecodeError:
            key = ""
        if not key or not is_plain(key):
            line = "must hold one key of printable ASCII without blanks and commas"
            raise ConfigError([f"{self._place}: {self._path} {line}"])
        return key
