"""The journal's part of the composition: from configuration to the store that is opened.

Belongs to the composition layer, beside `app`.
"""

import logging
from pathlib import Path

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.adapters.journal_redis import RedisJournal, look_at_server
from envoy_ext.adapters.journal_redis_lane import Replicas
from envoy_ext.adapters.journal_redis_server import derive_guarantees, list_doubts
from envoy_ext.adapters.journal_redis_way import Login, RedisPlace
from envoy_ext.adapters.journal_sqlite import GUARANTEES, SqliteJournal
from envoy_ext.config import Config, Journal
from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.job import JobBounds
from envoy_ext.ports import Store

log = logging.getLogger("envoy_ext")

LOST_JOBS = "jobs that wait are lost with the sidecar: a journal in memory is for trying them out"


async def open_journal(config: Config) -> Store:
    """The store that the configuration names; what it promises is in the log."""
    journal = config.journal
    store = await _open(journal)
    guarantees = ",".join(sorted(store.guarantees))
    place = show_place(journal)
    log.info("journal_opened", extra={"store": journal.store, "place": place, "guarantees": guarantees})
    if isinstance(store, RedisJournal):
        for doubt in store.doubts:
            log.warning("journal_doubt", extra={"place": place, "detail": doubt})
    if config.jobs is not None and not store.guarantees:
        log.warning("journal_doubt", extra={"place": place, "detail": LOST_JOBS})
    return store


def build_job_bounds(config: Config) -> JobBounds:
    """How many jobs the store may have; none without a `jobs` section."""
    return JobBounds(0 if config.jobs is None else config.jobs.max_waiting, config.max_waiting_bytes)


async def describe_journal(journal: Journal, *, with_jobs: bool = False) -> list[str]:
    """Where the journal is and what it survives, in lines for people; writes nothing and starts nothing.

    Raises:
        JournalUnavailable: a Redis server cannot be asked, or could drop records.
        ConfigError: a file of a password cannot be read.
    """
    doubts: tuple[str, ...] = ()
    if journal.store == "redis":
        facts = await look_at_server(build_place(journal), journal.prefix)
        kept = derive_guarantees(facts, journal.wait_replicas)
        doubts = list_doubts(facts, journal.wait_replicas)
    else:
        kept = GUARANTEES[journal.synchronous] if journal.store == "sqlite" else MemoryJournal.guarantees
    survives = ", ".join(sorted(kept)) or "nothing"
    lines = [f"the journal, {journal.store} at {show_place(journal)}, survives: {survives}", *doubts]
    return [*lines, LOST_JOBS] if with_jobs and not kept else lines


async def _open(journal: Journal) -> Store:
    if journal.store == "memory":
        return MemoryJournal()
    if journal.store == "redis":
        replicas = _build_replicas(journal)
        call_s = journal.timeout - (replicas.timeout_s if replicas else 0.0)
        return await RedisJournal.open(build_place(journal), journal.prefix, replicas, call_s=call_s)
    return await SqliteJournal.open(journal.path, journal.synchronous, shared=journal.shared)


def show_place(journal: Journal) -> str:
    """Where it is, for people; never a user name or a password."""
    if journal.store == "redis":
        return build_place(journal, with_logins=False).shown
    return journal.path if journal.store == "sqlite" else "memory"


def build_place(journal: Journal, *, with_logins: bool = True) -> RedisPlace:
    """Where a Redis journal is, and how to get in.

    Raises:
        ConfigError: a file of a password cannot be read.
    """
    url, sentinel = journal.redis_url, journal.sentinel
    login = sentinel_login = Login()
    if with_logins:
        login = Login(
            journal.username or (url.username if url else None),
            _read_password("journal.password_file", journal.password_file) or (url.password if url else None),
        )
        if sentinel is not None:
            password = _read_password("journal.sentinel.password_file", sentinel.password_file)
            sentinel_login = Login(sentinel.username, password)
    if sentinel is not None:
        return RedisPlace(
            nodes=sentinel.addresses,
            service=sentinel.service,
            db=sentinel.db,
            tls=sentinel.tls,
            ca_file=journal.ca_file,
            cert_file=journal.cert_file,
            key_file=journal.key_file,
            login=login,
            sentinel_login=sentinel_login,
        )
    assert url is not None, "the configuration is not read without one of the two"
    return RedisPlace(
        nodes=() if url.socket is not None else ((url.host, url.port),),
        socket=url.socket,
        cluster=journal.cluster,
        db=url.db,
        tls=url.tls,
        ca_file=journal.ca_file,
        cert_file=journal.cert_file,
        key_file=journal.key_file,
        login=login,
    )


def _build_replicas(journal: Journal) -> Replicas | None:
    return Replicas(journal.wait_replicas, journal.wait_timeout) if journal.wait_replicas else None


def _read_password(key: str, path: str | None) -> str | None:
    """What a file holds, without the line's end; None without a file."""
    if path is None:
        return None
    try:
        password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError([f"{key}: {path} cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{key}: {path} is not UTF-8"]) from None
    if not password or "\n" in password:
        raise ConfigError([f"{key}: {path} must hold one line, the password"])
    return password
