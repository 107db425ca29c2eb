"""The access logs as evidence: intermediate, repeated, missing and early entries."""

import asyncio

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from envoy_ext.adapters.accesslog import AccessLogSession
from envoy_ext.adapters.accesslog_codec import read_attempt_progress
from envoy_ext.domain import names, step
from envoy_ext.domain.events import DeliveryClosed, ResponseBody
from envoy_ext.domain.exchange_shared import ExchangePolicy
from envoy_ext.domain.notes import AttemptFinished, ExchangeEnded
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Reason
from envoy_ext.domain.silent_loss import Confirmation
from envoy_ext.ports import Connection
from envoy_ext.services.live_exchange import LiveExchange
from tests.support.sidecar import DELTA, REST, Played, Sidecar, play_until_delta

RESET = "upstream_reset_after_response_started{remote_reset}"
GONE = "downstream_remote_disconnect"


def build_message(log_name: str | None, header: str, id: str, details: str, *, body_bytes: int = 0, **common):
    message = StreamAccessLogsMessage()
    if log_name is not None:
        message.identifier.log_name = log_name
    entry = message.http_logs.log_entry.add()
    entry.request.request_headers[header] = id
    entry.response.response_code_details = details
    entry.response.response_body_bytes = body_bytes
    entry.common_properties.access_log_type = AccessLogType.DownstreamEnd
    for name, value in common.items():
        setattr(entry.common_properties, name, value)
    return message


class Logs:
    """Both log streams of one Envoy."""

    def __init__(self, played: Played) -> None:
        self._played = played
        self._attempts = AccessLogSession(played.sidecar.reports)
        self._exchanges = AccessLogSession(played.sidecar.reports)

    def log_attempt(self, details: str, *, body_bytes: int = len(DELTA), **common) -> None:
        id = self._played.attempt_id
        self._attempts.receive(
            build_message(names.LOG_ATTEMPTS, names.ATTEMPT, id, details, body_bytes=body_bytes, **common)
        )

    def log_exchange(self, details: str, **common) -> None:
        id = self._played.exchange_id
        self._exchanges.receive(build_message(names.LOG_EXCHANGES, names.EXCHANGE, id, details, **common))


def read_ends(sidecar: Sidecar) -> list[ExchangeEnded]:
    return [note for note in sidecar.watcher.notes if isinstance(note, ExchangeEnded)]


def read_attempts(sidecar: Sidecar) -> list[AttemptOutcome]:
    return [note.outcome for note in sidecar.watcher.notes if isinstance(note, AttemptFinished)]


async def wait_forgotten(sidecar: Sidecar) -> None:
    async with asyncio.timeout(5):
        await sidecar.exchanges.wait_idle()
    await sidecar.settle()
    assert sidecar.watcher.bugs == []


async def test_an_intermediate_entry_ends_nothing():
    played = await play_until_delta(Sidecar())
    logs = Logs(played)

    logs.log_attempt("", intermediate_log_entry=True)
    logs.log_attempt("", access_log_type=AccessLogType.DownstreamPeriodic)
    logs.log_attempt("", access_log_type=AccessLogType.UpstreamPoolReady)
    logs.log_exchange("", access_log_type=AccessLogType.DownstreamStart)
    played.delivery.receive(ResponseBody(REST, end=False))
    await played.sidecar.settle()

    assert played.client.replies[-1] == step.ForwardBody(REST, end=False)
    assert (await played.sidecar.operation()).ending is None
    assert read_attempts(played.sidecar) == []


def tell_progress(played: Played, *, left: int, taken: int) -> None:
    """One look of Envoy's: an entry of each hop."""
    periodic = {"access_log_type": AccessLogType.DownstreamPeriodic}
    attempts = AccessLogSession(played.sidecar.reports)
    id = played.attempt_id
    attempts.receive(build_message(names.LOG_ATTEMPTS, names.ATTEMPT, id, "", body_bytes=left, **periodic))
    message = build_message(
        names.LOG_EXCHANGES,
        names.EXCHANGE,
        played.exchange_id,
        "via_upstream",
        downstream_wire_bytes_sent=taken + 120,
        **periodic,
    )
    entry = message.http_logs.log_entry[0]
    entry.response.downstream_header_bytes_sent = 120
    local, peer = (
        entry.common_properties.downstream_local_address.socket_address,
        entry.common_properties.downstream_direct_remote_address.socket_address,
    )
    local.address, local.port_value, peer.address, peer.port_value = "10.0.0.1", 80, "10.0.0.9", 999
    AccessLogSession(played.sidecar.reports).receive(message)


class Kernel:
    """Knows what the client's machine has confirmed."""

    def __init__(self) -> None:
        self.acked: int | None = 5
        self.asked: list[Connection] = []

    def read_acked(self, connection: Connection) -> int | None:
        self.asked.append(connection)
        return self.acked

    def read_confirmation(self, connection: Connection) -> Confirmation | None:
        raise AssertionError("its answer has begun")


async def play_stall(kernel: Kernel | None = None) -> Played:
    policy = ExchangePolicy(settle_s=0.05, client_stall_s=0.05)  # one look makes a stall
    return await play_until_delta(Sidecar(policy=policy, connections=kernel))


async def pass_a_look() -> None:
    await asyncio.sleep(0.11)  # the time itself is what is counted; there is nothing to wait for


@pytest.mark.parametrize(
    ("left", "taken"),
    [pytest.param(len(DELTA) + 1, 10_000, id="held up"), pytest.param(len(DELTA), 1, id="behind a window")],
)
async def test_progress_entries_tell_of_a_client_that_takes_nothing(left, taken):
    played = await play_stall()
    tell_progress(played, left=left, taken=taken)
    await pass_a_look()
    tell_progress(played, left=left, taken=taken)
    await played.sidecar.settle()

    assert played.client.replies[-1] == step.ResetDelivery()
    operation = await played.sidecar.operation()
    assert (operation.ending, operation.reason) == (Ending.CLIENT_GONE, Reason.CLIENT_STALLED)


async def test_progress_entries_of_a_client_that_has_taken_all_end_nothing():
    kernel = Kernel()
    played = await play_stall(kernel)
    for _ in range(3):
        tell_progress(played, left=len(DELTA), taken=len(DELTA))
        await pass_a_look()

    assert step.ResetDelivery() not in played.client.replies
    assert kernel.asked == [], "the kernel is asked only when something waits"


async def test_the_kernel_is_asked_about_the_clients_connection_and_its_word_counts():
    kernel = Kernel()
    played = await play_stall(kernel)
    for acked in (1, 2, 3):
        kernel.acked = acked
        tell_progress(played, left=len(DELTA) + 1, taken=10_000)
        await pass_a_look()
    assert step.ResetDelivery() not in played.client.replies
    assert set(kernel.asked) == {Connection("10.0.0.1", 80, "10.0.0.9", 999)}

    tell_progress(played, left=len(DELTA) + 1, taken=10_000)
    await played.sidecar.settle()
    assert played.client.replies[-1] == step.ResetDelivery()


async def test_while_replies_wait_for_the_journal_a_client_is_not_stalled(monkeypatch):
    """An earlier attempt's end may be recorded late, and what is let go meanwhile has not left yet."""
    played = await play_stall()
    with monkeypatch.context() as patched:
        patched.setattr(LiveExchange, "writing", True)
        for _ in range(3):
            tell_progress(played, left=len(DELTA), taken=1)
            await pass_a_look()
    await played.sidecar.settle()
    assert step.ResetDelivery() not in played.client.replies


def test_a_progress_entry_of_the_egress_hop_names_the_replicas_connection():
    message = build_message(names.LOG_ATTEMPTS, names.ATTEMPT, "att_1", "", body_bytes=9)
    entry = message.http_logs.log_entry[0]
    assert read_attempt_progress(entry) == ("att_1", 9, Connection("", 0, "", 0))
    local = entry.common_properties.upstream_local_address.socket_address
    peer = entry.common_properties.upstream_remote_address.socket_address
    local.address, local.port_value, peer.address, peer.port_value = "fd00::9", 40_000, "fd00::1", 8000
    _, _, connection = read_attempt_progress(entry)
    assert connection == Connection("fd00::9", 40_000, "fd00::1", 8000)
    assert connection.peer == "[fd00::1]:8000"


async def test_progress_of_nobody_known_is_dropped():
    played = await play_until_delta(Sidecar())
    played.attempt_id = "att_none"
    played.exchange_id = "exg_none"
    tell_progress(played, left=9, taken=1)
    assert played.sidecar.watcher.bugs == []


async def test_an_end_that_is_logged_twice_counts_once():
    """The log's stream broke after the entry was sent, and Envoy sends it again on the next one."""
    played = await play_until_delta(Sidecar())
    logs = Logs(played)

    for _ in range(3):
        logs.log_attempt(RESET)
        logs.log_exchange("via_upstream")
        await played.sidecar.settle()
    played.delivery.receive(DeliveryClosed())
    logs.log_attempt("via_upstream")
    logs.log_exchange(GONE)
    await wait_forgotten(played.sidecar)
    logs.log_attempt("via_upstream")

    operation = await played.sidecar.operation()
    assert (operation.ending, operation.reason) == (Ending.UPSTREAM_BROKE, Reason.REPLICA_DIED)
    assert [attempt.outcome for attempt in operation.attempts] == [AttemptOutcome.REPLICA_DIED]
    assert len(read_ends(played.sidecar)) == 1
    assert read_attempts(played.sidecar) == [AttemptOutcome.REPLICA_DIED]
    typed = [one for one in played.client.replies if isinstance(one, step.ForwardBody) and one.end]
    assert len(typed) == 1


async def test_an_entry_may_come_before_the_last_bytes():
    played = await play_until_delta(Sidecar())
    logs = Logs(played)
    more = DELTA.replace(b"Hel", b"lo!")

    logs.log_attempt(RESET, body_bytes=len(DELTA) + len(more))
    assert not any(isinstance(one, step.ForwardBody) and one.end for one in played.client.replies)
    played.delivery.receive(ResponseBody(more, end=False))
    await played.sidecar.settle()

    passed, typed = played.client.replies[-2:]
    assert passed == step.ForwardBody(more, end=False)
    assert isinstance(typed, step.ForwardBody)
    assert typed.end
    assert b'"upstream_decode_interrupted"' in typed.data


@pytest.mark.parametrize(
    "order", ["attempt, exchange, close", "exchange, close, attempt", "close, exchange, attempt"]
)
async def test_the_end_is_the_same_in_every_order(order):
    # Long enough for all three to come, whatever the machine does between them.
    played = await play_until_delta(Sidecar(policy=ExchangePolicy()))
    logs = Logs(played)
    for source in order.split(", "):
        match source:
            case "attempt":
                logs.log_attempt(GONE)
            case "exchange":
                logs.log_exchange(GONE)
            case "close":
                played.delivery.receive(DeliveryClosed())
        await played.sidecar.settle()
    await wait_forgotten(played.sidecar)

    operation = await played.sidecar.operation()
    assert operation.ending is Ending.CLIENT_GONE
    assert [attempt.outcome for attempt in operation.attempts] == [AttemptOutcome.CANCELLED]


async def test_without_any_entry_the_end_is_settled_by_time_and_called_unknown():
    played = await play_until_delta(Sidecar())

    played.delivery.receive(DeliveryClosed())
    await wait_forgotten(played.sidecar)

    operation = await played.sidecar.operation()
    assert operation.ending is Ending.UNKNOWN
    assert [attempt.outcome for attempt in operation.attempts] == [AttemptOutcome.UNKNOWN]


async def test_without_any_entry_a_whole_answer_is_a_whole_answer():
    """The stream itself saw the end; the log is not needed for it."""
    played = await play_until_delta(Sidecar())

    played.delivery.receive(ResponseBody(REST, end=True))
    played.delivery.receive(DeliveryClosed())
    await wait_forgotten(played.sidecar)

    operation = await played.sidecar.operation()
    assert operation.ending is Ending.FINISHED


async def test_what_the_stream_saw_outweighs_an_entry_that_says_otherwise():
    played = await play_until_delta(Sidecar())
    logs = Logs(played)

    played.delivery.receive(ResponseBody(REST, end=True))
    logs.log_attempt(GONE)
    logs.log_exchange(GONE)
    played.delivery.receive(DeliveryClosed())
    await wait_forgotten(played.sidecar)

    assert (await played.sidecar.operation()).ending is Ending.FINISHED


async def test_entries_of_exchanges_that_nobody_knows_are_let_go():
    """Of an earlier life of the sidecar, or of one that has long been forgotten."""
    sidecar = Sidecar()
    session = AccessLogSession(sidecar.reports)
    session.receive(build_message(names.LOG_ATTEMPTS, names.ATTEMPT, "att_earlier", RESET))
    session.receive(build_message(None, names.ATTEMPT, "att_earlier", RESET))
    other = AccessLogSession(sidecar.reports)
    other.receive(build_message(names.LOG_EXCHANGES, names.EXCHANGE, "exg_earlier", GONE))
    assert sidecar.exchanges.inflight == 0
    assert sidecar.watcher.notes == sidecar.watcher.bugs == []


async def test_the_name_of_a_log_stands_in_its_first_message_only():
    played = await play_until_delta(Sidecar())
    session = AccessLogSession(played.sidecar.reports)
    session.receive(build_message(names.LOG_ATTEMPTS, names.ATTEMPT, "att_of_another", RESET))

    session.receive(build_message(None, names.ATTEMPT, played.attempt_id, RESET, body_bytes=len(DELTA)))
    await played.sidecar.settle()

    assert b'"upstream_decode_interrupted"' in played.client.replies[-1].data


async def test_a_log_of_another_name_is_not_ours():
    played = await play_until_delta(Sidecar())
    session = AccessLogSession(played.sidecar.reports)

    session.receive(build_message("somebody_elses", names.ATTEMPT, played.attempt_id, RESET, body_bytes=1))
    await played.sidecar.settle()

    assert not any(isinstance(one, step.ForwardBody) and one.end for one in played.client.replies)
