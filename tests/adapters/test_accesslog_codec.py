"""One access-log entry, read: only ends, only ours, and whose doing the end was."""

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry, ResponseFlags

from envoy_ext.adapters.accesslog_codec import LogFacts, read_cause, read_log_entry
from envoy_ext.domain import names
from envoy_ext.domain.events import LogCause


def build_entry(*, attempt="att_1", exchange="exg_1", details="via_upstream", type="DownstreamEnd", **common):
    entry = HTTPAccessLogEntry()
    entry.common_properties.access_log_type = AccessLogType.Value(type)
    for name, value in common.items():
        setattr(entry.common_properties, name, value)
    for name, value in ((names.ATTEMPT, attempt), (names.EXCHANGE, exchange)):
        if value:
            entry.request.request_headers[name] = value
    entry.response.response_code_details = details
    entry.response.response_body_bytes = 120
    return entry


def test_an_end_says_whose_it_is_how_it_came_and_how_much_left_the_hop():
    entry = build_entry(details="upstream_reset_after_response_started{connection_termination}")
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "10.0.0.1", 8000
    entry.common_properties.upstream_transport_failure_reason = "reset by peer"
    assert read_log_entry(entry) == LogFacts(
        exchange_id="exg_1",
        attempt_id="att_1",
        cause=LogCause.UPSTREAM_RESET,
        upstream_address="10.0.0.1:8000",
        body_bytes=120,
        detail="upstream_reset_after_response_started{connection_termination} reset by peer",
    )


def test_an_ipv6_address_is_written_as_envoy_writes_it_elsewhere():
    entry = build_entry()
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "fd00::1", 8000
    assert read_log_entry(entry).upstream_address == "[fd00::1]:8000"


def test_no_address_is_no_address():
    assert read_log_entry(build_entry()).upstream_address == ""


NO_ENDS = {name for name, _ in AccessLogType.items()} - {"NotSet", "DownstreamEnd"}


@pytest.mark.parametrize("type", sorted(NO_ENDS))
def test_an_entry_that_is_no_end_of_a_hop_says_nothing(type):
    assert read_log_entry(build_entry(type=type)) is None


@pytest.mark.parametrize("type", ["NotSet", "DownstreamEnd"])
def test_an_intermediate_entry_says_nothing_whatever_its_type(type):
    assert read_log_entry(build_entry(type=type)) is not None
    assert read_log_entry(build_entry(type=type, intermediate_log_entry=True)) is None


def test_an_entry_of_a_request_that_never_reached_the_sidecar_is_not_ours():
    assert read_log_entry(build_entry(attempt="", exchange="")) is None
    assert read_log_entry(build_entry(attempt="")).attempt_id == ""
    assert read_log_entry(build_entry(exchange="")).exchange_id == ""


NOT_MADE = "upstream_reset_before_response_started{remote_connection_failure"


@pytest.mark.parametrize(
    ("details", "transport", "cause"),
    [
        ("via_upstream", "", LogCause.COMPLETED),
        ("upstream_reset_before_response_started{connection_termination}", "", LogCause.UPSTREAM_RESET),
        ("upstream_reset_after_response_started{connection_termination}", "", LogCause.UPSTREAM_RESET),
        ("upstream_reset_after_response_started{remote_reset}", "", LogCause.UPSTREAM_RESET),
        ("upstream_reset_after_response_started{protocol_error}", "", LogCause.UPSTREAM_RESET),
        (
            "upstream_reset_before_response_started{remote_connection_failure|delayed connect error: 111}",
            "delayed connect error: Connection refused",
            LogCause.CONNECT_REFUSED,
        ),
        # As the mark of an answer has it, which is the details alone.
        (f"{NOT_MADE}|delayed_connect_error:_Connection_refused}}", "", LogCause.CONNECT_REFUSED),
        (f"{NOT_MADE}|delayed_connect_error:_Connection_reset_by_peer}}", "", LogCause.CONNECT_REFUSED),
        (f"{NOT_MADE}|immediate_connect_error:_No_route_to_host}}", "", LogCause.UNREACHABLE),
        (f"{NOT_MADE}|immediate_connect_error:_Permission_denied}}", "", LogCause.UNREACHABLE),
        (f"{NOT_MADE}}}", "", LogCause.UNREACHABLE),
        # A connect timeout: the replica has seen nothing of the request.
        ("upstream_reset_before_response_started{connection_timeout}", "", LogCause.UNREACHABLE),
        ("upstream_reset_before_response_started{overflow}", "", LogCause.NO_UPSTREAM),
        # Nobody said that the replica is gone.
        (
            "upstream_reset_after_response_started{connection_termination}",
            "connection timed out",
            LogCause.UPSTREAM_TIMEOUT,
        ),
        ("downstream_remote_disconnect", "", LogCause.DOWNSTREAM_GONE),
        ("downstream_local_disconnect(delayed_close_timeout)", "", LogCause.DOWNSTREAM_GONE),
        ("http1.codec_error", "", LogCause.DOWNSTREAM_GONE),
        ("http2.remote_reset", "", LogCause.DOWNSTREAM_GONE),
        ("no_healthy_upstream", "", LogCause.NO_UPSTREAM),
        ("route_not_found", "", LogCause.NO_UPSTREAM),
        ("cluster_not_found", "", LogCause.NO_UPSTREAM),
        ("envoy_ext_replay_not_allowed", "", LogCause.SIDECAR),
        ("ext_proc_error_gRPC_error_10", "", LogCause.SIDECAR),
        ("something_nobody_knows", "", LogCause.OTHER),
        ("", "", LogCause.OTHER),
    ],
)
def test_the_code_details_decide_where_they_are_specific(details, transport, cause):
    assert read_cause(details, ResponseFlags(), transport) is cause


@pytest.mark.parametrize(
    ("flag", "cause"),
    [
        ("downstream_connection_termination", LogCause.DOWNSTREAM_GONE),
        ("downstream_remote_reset", LogCause.DOWNSTREAM_GONE),
        ("no_healthy_upstream", LogCause.NO_UPSTREAM),
        ("upstream_overflow", LogCause.NO_UPSTREAM),
        ("upstream_request_timeout", LogCause.UPSTREAM_TIMEOUT),
        ("upstream_connection_failure", LogCause.UNREACHABLE),
        ("upstream_connection_termination", LogCause.UPSTREAM_RESET),
        ("upstream_remote_reset", LogCause.UPSTREAM_RESET),
        ("upstream_protocol_error", LogCause.UPSTREAM_RESET),
    ],
)
def test_elsewhere_the_flags_decide(flag, cause):
    assert read_cause("", ResponseFlags(**{flag: True})) is cause


def test_a_client_that_left_outweighs_what_its_leaving_did_to_the_replica():
    flags = ResponseFlags(downstream_connection_termination=True, upstream_connection_termination=True)
    assert read_cause("", flags) is LogCause.DOWNSTREAM_GONE


def test_the_status_is_never_asked():
    """A reset after the response had started keeps status 200, and is no success."""
    entry = build_entry(details="upstream_reset_after_response_started{remote_reset}")
    entry.response.response_code.value = 200
    assert read_log_entry(entry).cause is LogCause.UPSTREAM_RESET
