"""Callers as part of the composition: the section and its file, to what is decided with.

Belongs to the composition layer, beside `app`.
"""

import logging
import secrets
from ipaddress import ip_network

from envoy_ext.config import CallersFile, Config, Vocabulary, find_loose_mode, load_callers_file
from envoy_ext.domain import boundaries, traffic_class
from envoy_ext.domain.callers import CallerBook, CallerEntry, CallerRules, Rights
from envoy_ext.domain.ids import PoolName
from envoy_ext.observability.metrics import Metrics
from envoy_ext.services.callers import Callers
from envoy_ext.wiring.file_mark import read_file_mark

log = logging.getLogger("envoy_ext")


def build_callers(config: Config, metrics: Metrics) -> Callers | None:
    """Who is let in; None where everybody is.

    Raises:
        ConfigError: the file is bad.
    """
    section = config.callers
    if section is None:
        return None
    source = None if section.keys_file is None else _File(section.keys_file, config)
    rules = CallerRules(
        checks_keys=source is not None,
        trusted_header=section.trusted_header,
        trusted_from=tuple(ip_network(one) for one in section.trusted_from),
    )
    return Callers(rules, source, _Notes(metrics))


def read_callers(path: str, config: Config) -> tuple[CallerEntry, ...]:
    """The callers of a file, as this configuration has them.

    Raises:
        ConfigError: the file is bad.
    """
    return tuple(_build_entries(load_callers_file(path, _list_words(config)), config))


class _File:
    """`services.callers.CallersSource` of a path."""

    def __init__(self, path: str, config: Config) -> None:
        self._path = path
        self._config = config
        self._blind = secrets.token_bytes(32)

    def read_mark(self) -> object:
        return read_file_mark(self._path)

    def load(self) -> CallerBook:
        entries = read_callers(self._path, self._config)
        loose = find_loose_mode(self._path)
        if loose is not None:
            log.warning("callers_file_open", extra={"why": loose})
        return CallerBook(entries, self._blind)


class _Notes:
    """`services.callers.Listener`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def note_read(self, callers: int) -> None:
        self._metrics.note_callers_file(in_force=True)
        log.info("callers_read", extra={"callers": callers})

    def note_refused(self, mistakes: list[str]) -> None:
        self._metrics.note_callers_file(in_force=False)
        log.error("callers_refused", extra={"why": mistakes[0], "mistakes": len(mistakes)})


def _list_words(config: Config) -> Vocabulary:
    return Vocabulary(
        models=frozenset(model for pool in config.pools for model in pool.models),
        pools=frozenset(pool.name for pool in config.pools),
        classes=frozenset((traffic_class.DEFAULT, *config.admission.classes)),
        data_classes=frozenset((boundaries.DEFAULT, *config.data_classes)),
    )


def _build_entries(loaded: CallersFile, config: Config) -> list[CallerEntry]:
    return [
        CallerEntry(
            name=row.name,
            digests=tuple(bytes.fromhex(one) for one in row.sha256),
            rights=Rights(
                models=None if row.models is None and row.pools is None else frozenset(row.models or ()),
                pools=_list_pools(row.models, row.pools, config),
                classes=row.classes or (),
                data_classes=row.data_classes or (),
            ),
            expires_at=row.expires,
            disabled=row.disabled,
        )
        for row in loaded.callers
    ]


def _list_pools(
    models: tuple[str, ...] | None, pools: tuple[PoolName, ...] | None, config: Config
) -> frozenset[PoolName] | None:
    """Those that a caller may use whole: whoever has all of its models may ask without naming one."""
    if models is None and pools is None:
        return None
    whole = {pool.name for pool in config.pools if set(pool.models) <= set(models or ())}
    return frozenset(whole | set(pools or ()))
