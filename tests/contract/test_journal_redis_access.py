"""Who is let in to a Redis journal, and how: ACL users with the documented rights and no others, and TLS."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from envoy_ext.adapters import journal_redis, journal_redis_way
from envoy_ext.adapters.journal_redis import RedisJournal
from envoy_ext.adapters.journal_redis_lane import Replicas
from envoy_ext.adapters.journal_redis_scripts import COMMANDS
from envoy_ext.adapters.journal_redis_way import Login, RedisPlace
from envoy_ext.domain.errors import JournalUnavailable
from tests.support.journals import use_everything, use_jobs
from tests.support.redis_server import RedisServer, redis_server

DOC = Path(__file__).parents[2] / "docs" / "stores.md"
LOGIN = Login("envoy-ext", "PASSWORD")


def read_acl_line() -> list[str]:
    """The rights of the line in the documentation, without `user NAME`."""
    found = re.search(r"^user envoy-ext (on .*)$", DOC.read_text(), flags=re.MULTILINE)
    assert found is not None
    return found[1].split()


RIGHTS = read_acl_line()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as one:
        yield one


def allow(server: RedisServer, rights: list[str]) -> None:
    with server.ask() as asked:
        asked.execute_command("ACL", "SETUSER", "envoy-ext", "reset", *rights)
        asked.execute_command("ACL", "LOG", "RESET")


def list_denials(server: RedisServer) -> list[object]:
    with server.ask() as asked:
        denials: list[object] = asked.execute_command("ACL", "LOG")
    return denials


def at(server: RedisServer) -> RedisPlace:
    return RedisPlace(nodes=(("127.0.0.1", server.port),), login=LOGIN)


async def test_the_documented_rights_are_enough_and_nothing_else_is_tried(server: RedisServer) -> None:
    allow(server, RIGHTS)
    journal = await RedisJournal.open(at(server))
    await use_everything(journal)
    await use_jobs(journal, "op_9")
    await journal.close()
    assert list_denials(server) == []


def test_the_documented_rights_are_those_that_scripts_need_and_a_few_more() -> None:
    given = {right.removeprefix("+") for right in RIGHTS if right.startswith("+")}
    assert given - COMMANDS == {"eval", "evalsha", "info", "config|get", "wait"}
    assert given >= COMMANDS
    assert [right for right in RIGHTS if right[0] not in "+>"] == [
        "on",
        "~{envoy-ext}:*",
        "resetchannels",
        "-@all",
    ]


@pytest.mark.parametrize("command", sorted(COMMANDS | {"eval", "evalsha"}))
async def test_a_right_that_is_missing_is_named_at_the_start(server: RedisServer, command: str) -> None:
    allow(server, [right for right in RIGHTS if right != f"+{command}"])
    with pytest.raises(JournalUnavailable) as caught:
        await RedisJournal.open(at(server))
    said = str(caught.value)
    assert f"NOPERM: its ACL does not let this user run {command.upper()} on the journal's keys" in said
    assert "docs/stores.md" in said
    assert "PASSWORD" not in said


async def test_a_right_to_other_keys_is_none(server: RedisServer) -> None:
    allow(server, [right.replace("~{envoy-ext}", "~{another}") for right in RIGHTS])
    with pytest.raises(JournalUnavailable, match="NOPERM"):
        await RedisJournal.open(at(server))
    allow(server, [right.replace("~{envoy-ext}", "~{another}") for right in RIGHTS])
    journal = await RedisJournal.open(at(server), "another")
    await use_everything(journal)
    await use_jobs(journal, "op_9")
    await journal.close()


async def test_another_database_needs_one_more_right(server: RedisServer) -> None:
    place = RedisPlace(nodes=(("127.0.0.1", server.port),), login=LOGIN, db=1)
    allow(server, RIGHTS)
    with pytest.raises(JournalUnavailable, match="does not let this user run SELECT"):
        await RedisJournal.open(place)
    assert "+select" in DOC.read_text()
    allow(server, [*RIGHTS, "+select"])
    journal = await RedisJournal.open(place)
    await use_everything(journal)
    await use_jobs(journal, "op_9")
    await journal.close()
    assert list_denials(server) == []


async def test_a_server_that_may_not_be_asked_promises_little_and_leaves_a_doubt(server: RedisServer) -> None:
    with server.ask() as asked:
        asked.config_set("appendonly", "yes")
        asked.config_set("appendfsync", "always")
    allow(server, RIGHTS)
    journal = await RedisJournal.open(at(server))
    assert journal.guarantees == {"process_death", "power_loss"}
    assert journal.doubts == ()
    await journal.close()
    with server.ask() as asked:
        asked.config_set("no-appendfsync-on-rewrite", "yes")
    journal = await RedisJournal.open(at(server))
    assert journal.guarantees == {"process_death"}
    assert ["no fsync while it rewrites" in doubt for doubt in journal.doubts] == [True]
    await journal.close()
    allow(server, [right for right in RIGHTS if right not in ("+info", "+config|get")])
    journal = await RedisJournal.open(at(server))
    assert journal.guarantees == {"process_death"}
    assert ["maxmemory-policy" in doubt for doubt in journal.doubts] == [True, False]
    assert "power_loss is not promised" in journal.doubts[1]
    await use_everything(journal)
    await use_jobs(journal, "op_9")
    await journal.close()


async def test_where_waiting_is_not_allowed_nothing_counts_as_written(server: RedisServer) -> None:
    allow(server, [right for right in RIGHTS if right != "+wait"])
    journal = await RedisJournal.open(at(server), replicas=Replicas(1, 0.1))
    with pytest.raises(JournalUnavailable, match="NOPERM: its ACL does not let this user run WAIT"):
        await journal.take_seat("gw")
    await journal.close()


# --- TLS ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and `NAME.pem` and `NAME.key` of a server and a gateway."""
    directory = tmp_path_factory.mktemp("tls")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    for name, identity in (("server", "127.0.0.1"), ("gateway", "gateway.example")):
        issued = authority.issue_cert(identity)
        issued.cert_chain_pems[0].write_to_path(directory / f"{name}.pem")
        issued.private_key_pem.write_to_path(directory / f"{name}.key")
    return directory


@pytest.fixture
def speaking_tls(files: Path, tmp_path: Path) -> Iterator[RedisServer]:
    options = {
        "port": "0",
        "tls_cert_file": str(files / "server.pem"),
        "tls_key_file": str(files / "server.key"),
        "tls_ca_cert_file": str(files / "ca.pem"),
        "tls_auth_clients": "yes",
    }
    with redis_server(tmp_path / "redis", tls=True, **options) as one:
        yield one


def over_tls(server: RedisServer, files: Path, **changes: object) -> RedisPlace:
    known: dict[str, object] = {
        "ca_file": str(files / "ca.pem"),
        "cert_file": str(files / "gateway.pem"),
        "key_file": str(files / "gateway.key"),
    }
    return RedisPlace(nodes=(("127.0.0.1", server.port),), tls=True, **known | changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with much else may take seconds to say no over TLS."""
    monkeypatch.setattr(journal_redis_way, "CONNECT_S", 20.0)
    monkeypatch.setattr(journal_redis_way, "ANSWER_S", 20.0)
    monkeypatch.setattr(journal_redis, "OPEN_S", 60.0)


async def refusal(place: RedisPlace) -> str:
    with pytest.raises(JournalUnavailable) as caught:
        await RedisJournal.open(place)
    return str(caught.value)


async def test_a_server_that_asks_for_a_certificate_is_shown_one(
    speaking_tls: RedisServer, files: Path
) -> None:
    place = over_tls(speaking_tls, files)
    assert place.shown == f"rediss://127.0.0.1:{speaking_tls.port}"
    journal = await RedisJournal.open(place)
    await use_everything(journal)
    await use_jobs(journal, "op_9")
    await journal.close()


async def test_a_server_that_nobody_vouches_for_is_refused(speaking_tls: RedisServer, files: Path) -> None:
    said = await refusal(over_tls(speaking_tls, files, ca_file=None))
    assert "TLS failed: CERTIFICATE_VERIFY_FAILED: see journal.ca_file" in said


async def test_a_server_of_another_name_is_refused(speaking_tls: RedisServer, files: Path) -> None:
    place = over_tls(speaking_tls, files)
    named = RedisPlace(
        nodes=(("localhost", speaking_tls.port),),
        tls=True,
        ca_file=place.ca_file,
        cert_file=place.cert_file,
        key_file=place.key_file,
    )
    assert "TLS failed: CERTIFICATE_VERIFY_FAILED" in await refusal(named)


async def test_a_gateway_without_a_certificate_is_told_so(speaking_tls: RedisServer, files: Path) -> None:
    said = await refusal(over_tls(speaking_tls, files, cert_file=None, key_file=None))
    # The server ends the connection, before its alert was read or after.
    assert "TLS failed: " in said or "a server that asks for a certificate: journal.cert_file" in said


async def test_tls_to_a_server_that_speaks_none_is_said(
    redis: RedisServer, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_redis_way, "CONNECT_S", 1.0)  # which is all that ends this one
    said = await refusal(over_tls(redis, files))
    assert "with TLS whether this port speaks it" in said


@pytest.mark.parametrize("key", ["ca_file", "cert_file", "key_file"])
async def test_a_file_that_is_not_there_is_a_fault_of_the_start(
    speaking_tls: RedisServer, files: Path, key: str
) -> None:
    said = await refusal(over_tls(speaking_tls, files, **{key: "/nowhere/file.pem"}))
    assert said.endswith(f"journal.{key}: /nowhere/file.pem cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("key", "other", "said"),
    [
        ("ca_file", "server.key", "journal.ca_file holds no certificate in PEM form"),
        ("cert_file", "ca.pem", "journal.cert_file and journal.key_file are not a certificate"),
        (
            "key_file",
            "server.key",
            "journal.cert_file and journal.key_file are not a certificate",
        ),
    ],
)
async def test_a_file_that_holds_something_else_is_a_fault_of_the_start(
    speaking_tls: RedisServer, files: Path, key: str, other: str, said: str
) -> None:
    assert said in await refusal(over_tls(speaking_tls, files, **{key: str(files / other)}))
