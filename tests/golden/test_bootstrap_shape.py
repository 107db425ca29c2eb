"""What the rendering takes from the configuration, and what Envoy itself says to each variant of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envoy_ext.adapters.envoy_process import find_envoy, validate_bootstrap
from envoy_ext.bootstrap.render import render_bootstrap, render_bootstrap_yaml
from envoy_ext.config import parse_config
from envoy_ext.domain import names

POOL: dict[str, Any] = {
    "name": "chat",
    "models": ["m"],
    "replicas": [{"id": "a", "url": "http://10.0.0.11:8000"}, {"id": "b", "url": "http://[::1]:8001"}],
}
STATIC: dict[str, Any] = {"envoy": {"endpoints": "static"}}
NAMED: dict[str, Any] = {
    "pools": [{**POOL, "replicas": [{"url": "http://replica-0.replicas:8000"}, {"url": "http://10.0.0.1"}]}]
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "replicas in the bootstrap": STATIC,
    "names in the bootstrap": STATIC | NAMED,
    "sidecar over tcp": {"sidecar": {"address": "127.0.0.1", "port": 9903}},
    "sidecar over tcp6": {"sidecar": {"address": "::1", "port": 9903}},
    "native": {"sidecar": {"socket": "/run/a/s.sock", "transport": "native"}},
    "native over tcp6": {
        "sidecar": {"address": "::1", "port": 9903, "transport": "native", "streams_port": 9904}
    },
    "grpc.aio": {"sidecar": {"socket": "/run/a/s.sock", "transport": "grpc_aio"}},
    "no admin port": {"envoy": {"admin": None}},
    "one attempt": {"on_upstream_failure": {"before_first_delta": {"max_attempts": 1}}},
    "no replays": {"on_upstream_failure": {"before_first_delta": {"action": "fail"}}},
    "five attempts": {"on_upstream_failure": {"before_first_delta": {"max_attempts": 5}}},
    "no retry budget": {"retry_budget": {"percent": 0, "min_concurrency": 0}},
    "smallest body": {"limits": {"max_request_bytes": "1KiB", "client_write_stall": "1ms"}},
    "largest body": {"limits": {"max_request_bytes": "1GiB", "client_write_stall": "24h"}},
    "names for replicas": NAMED,
    "tools": {
        "tools": {
            "listener": {"port": 8081},
            "max_request_bytes": "64KiB",
            "routes": [
                {"name": "mail", "prefix": "/mail/", "url": "http://10.0.0.20:9000/api/", "timeout": "5s"},
                {"name": "search", "prefix": "/mail/search", "url": "https://search.example"},
                {"name": "bank", "prefix": "/bank", "url": "https://10.0.0.21", "host": "bank.example:444"},
                {"name": "rest", "prefix": "/", "url": "https://[::1]:8443/x"},
            ],
        }
    },
    "tools at a socket": {
        "tools": {
            "listener": {"socket": "/run/envoy-ext/tools.sock"},
            "routes": [{"name": "mail", "prefix": "/", "url": "http://mail:9000"}],
        }
    },
    "jobs": {"jobs": {}, "limits": {"max_request_bytes": "64KiB"}},
    "two pools": {
        "pools": [POOL, {"name": "code", "models": ["n"], "replicas": [{"url": "http://10.0.0.13:8000"}]}]
    },
}


def render(sections: dict[str, Any]) -> dict[str, Any]:
    return render_bootstrap(parse_config({"pools": [POOL], **sections}, "test"))


def find_listener(bootstrap: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in bootstrap["static_resources"]["listeners"] if one["name"] == name)


def find_manager(bootstrap: dict[str, Any], name: str) -> dict[str, Any]:
    listener = find_listener(bootstrap, name)
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def find_cluster(bootstrap: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in bootstrap["static_resources"]["clusters"] if one["name"] == name)


def find_ingress_route(bootstrap: dict[str, Any]) -> dict[str, Any]:
    manager = find_manager(bootstrap, names.LISTENER_INGRESS)
    route: dict[str, Any] = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    return route


@pytest.mark.with_envoy
@pytest.mark.parametrize("variant", VARIANTS)
async def test_envoy_accepts_the_rendering(variant: str, tmp_path: Path) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(render(VARIANTS[variant])))
    assert await validate_bootstrap(find_envoy(), path) is None


@pytest.mark.with_envoy
async def test_envoy_accepts_the_committed_bootstrap() -> None:
    committed = Path(__file__).parents[2] / "envoy" / "bootstrap.yaml"
    assert await validate_bootstrap(find_envoy(), committed) is None


def test_the_text_and_the_data_are_the_same_bootstrap() -> None:
    config = parse_config({"pools": [POOL]}, "test")
    assert yaml.safe_load(render_bootstrap_yaml(config)) == render_bootstrap(config)


@pytest.mark.parametrize("attempts", [2, 3, 10])
def test_envoy_may_retry_once_less_than_attempts_are_allowed(attempts: int) -> None:
    route = find_ingress_route(
        render({"on_upstream_failure": {"before_first_delta": {"max_attempts": attempts}}})
    )
    assert route["retry_policy"]["num_retries"] == attempts - 1


def test_the_replay_mark_is_the_only_thing_that_envoy_retries_on() -> None:
    policy = find_ingress_route(render({}))["retry_policy"]
    assert policy["retry_on"] == "retriable-headers"
    assert policy["retriable_headers"] == [{"name": names.REPLAY, "present_match": True}]


@pytest.mark.parametrize("variant", ["one attempt", "no replays"])
def test_without_replays_there_is_no_retry_policy(variant: str) -> None:
    assert "retry_policy" not in find_ingress_route(render(VARIANTS[variant]))


def test_the_egress_hop_retries_nothing() -> None:
    routes = find_manager(render({}), names.LISTENER_EGRESS)["route_config"]["virtual_hosts"][0]["routes"]
    assert all("retry_policy" not in route["route"] for route in routes)


def test_jobs_have_a_listener_of_their_own_that_no_client_reaches_and_no_client_can_pretend() -> None:
    """The filters of the ingress, and its retries; what differs is what the sidecar is told of the door."""
    bootstrap, ingress = render(VARIANTS["jobs"]), names.LISTENER_INGRESS
    place = find_listener(bootstrap, names.LISTENER_JOBS)["address"]["pipe"]
    assert place == {"path": "/run/envoy-ext/jobs.sock", "mode": 0o600}
    jobs, clients = (find_manager(bootstrap, name) for name in (names.LISTENER_JOBS, ingress))
    assert [one["name"] for one in jobs["http_filters"]] == [one["name"] for one in clients["http_filters"]]
    told = [
        one["http_filters"][1]["typed_config"]["grpc_service"]["initial_metadata"] for one in (jobs, clients)
    ]
    assert told == [[{"key": names.ROLE_METADATA, "value": role}] for role in ("run", "delivery")]
    assert [one["name"] for one in render({})["static_resources"]["listeners"]] == ["ingress", "egress"]
    of_jobs, of_clients = (one["route_config"]["virtual_hosts"][0] for one in (jobs, clients))
    assert of_jobs["routes"] == of_clients["routes"]
    assert of_jobs["request_body_buffer_limit"] == of_clients["request_body_buffer_limit"] == 128 << 10


def test_no_timeout_of_envoy_ends_a_long_answer() -> None:
    bootstrap = render(VARIANTS["two pools"] | {"jobs": {}})
    for listener in (names.LISTENER_INGRESS, names.LISTENER_EGRESS, names.LISTENER_JOBS):
        manager = find_manager(bootstrap, listener)
        assert manager["stream_idle_timeout"] == "0s"
        for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
            assert (route["route"]["timeout"], route["route"]["idle_timeout"]) == ("0s", "0s")


def test_each_pool_has_its_route_and_its_cluster() -> None:
    bootstrap = render(VARIANTS["two pools"])
    routes = find_manager(bootstrap, names.LISTENER_EGRESS)["route_config"]["virtual_hosts"][0]["routes"]
    assert [
        (route["match"]["headers"][0]["string_match"]["exact"], route["route"]["cluster"]) for route in routes
    ] == [("chat", "pool_chat"), ("code", "pool_code")]
    for cluster in (find_cluster(bootstrap, name) for name in ("pool_chat", "pool_code")):
        assert (cluster["type"], "load_assignment" in cluster) == ("EDS", False)
        assert cluster["eds_cluster_config"]["eds_config"]["ads"] == {}


@pytest.mark.parametrize("endpoints", ["static", "xds"])
def test_a_pool_never_panics(endpoints: str) -> None:
    """Below its own threshold, half of them ready, Envoy sends work to those who must not have any."""
    config = parse_config({**VARIANTS["two pools"], "envoy": {"endpoints": endpoints}}, "test")
    clusters = render_bootstrap(config)["static_resources"]["clusters"]
    pools = [one for one in clusters if one["name"].startswith(names.POOL_CLUSTER_PREFIX)]
    assert len(pools) == 2
    for pool in pools:
        # Zero is what protobuf's JSON leaves out; the presence of the message is what sets it.
        assert pool["common_lb_config"]["healthy_panic_threshold"].get("value", 0) == 0


def test_an_endpoint_of_the_bootstrap_says_which_replica_it_is() -> None:
    cluster = find_cluster(render(STATIC), "pool_chat")
    assert cluster["type"] == "STATIC"
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    addresses = [one["endpoint"]["address"]["socket_address"] for one in endpoints]
    assert addresses == [
        {"address": "10.0.0.11", "port_value": 8000},
        {"address": "::1", "port_value": 8001},
    ]
    assert [one["metadata"]["filter_metadata"]["envoy_ext"]["replica"] for one in endpoints] == ["a", "b"]


def test_one_host_name_in_the_bootstrap_makes_the_pools_cluster_resolve_names() -> None:
    assert find_cluster(render(STATIC | NAMED), "pool_chat")["type"] == "STRICT_DNS"


def test_the_retry_budget_stands_at_the_hop_and_nowhere_else() -> None:
    bootstrap = render({"retry_budget": {"percent": 7.5, "min_concurrency": 2}})
    budgets = {
        cluster["name"]: cluster["circuit_breakers"]["thresholds"][0].get("retry_budget")
        for cluster in bootstrap["static_resources"]["clusters"]
    }
    assert budgets == {
        names.CLUSTER_SIDECAR: None,
        names.CLUSTER_SIDECAR_STREAMS: None,
        names.CLUSTER_SIDECAR_LOGS: None,
        names.CLUSTER_EGRESS: {"budget_percent": {"value": 7.5}, "min_retry_concurrency": 2},
        "pool_chat": None,
    }


def test_the_hop_is_a_socket_that_only_its_owner_may_open() -> None:
    bootstrap = render({"envoy": {"egress_socket": "/run/x/e.sock"}})
    assert find_listener(bootstrap, names.LISTENER_EGRESS)["address"]["pipe"] == {
        "path": "/run/x/e.sock",
        "mode": 0o600,
    }
    endpoint = find_cluster(bootstrap, names.CLUSTER_EGRESS)["load_assignment"]["endpoints"][0][
        "lb_endpoints"
    ][0]
    assert endpoint["endpoint"]["address"]["pipe"]["path"] == "/run/x/e.sock"


def test_both_access_logs_send_every_entry_at_once() -> None:
    bootstrap = render({})
    for listener, log_name, headers in (
        (names.LISTENER_INGRESS, names.LOG_EXCHANGES, [names.EXCHANGE]),
        (names.LISTENER_EGRESS, names.LOG_ATTEMPTS, [names.EXCHANGE, names.ATTEMPT]),
    ):
        log = find_manager(bootstrap, listener)["access_log"][0]["typed_config"]
        assert log["common_config"]["log_name"] == log_name
        # Above 0, Envoy drops entries while the connection is full.
        assert log["common_config"]["buffer_size_bytes"] == 0
        service = log["common_config"]["grpc_service"]["envoy_grpc"]
        assert service == {"cluster_name": names.CLUSTER_SIDECAR_LOGS}
        assert log["additional_request_headers_to_log"] == headers


def find_places(bootstrap: dict[str, Any]) -> dict[str, Any]:
    """Where the clusters that lead to the sidecar do so."""
    return {
        one["name"]: one["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        for one in bootstrap["static_resources"]["clusters"]
        if "sidecar" in one["name"]
    }


def find_processor_clusters(bootstrap: dict[str, Any]) -> set[str]:
    """Which cluster each ext_proc filter speaks to."""
    return {
        one["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
        for listener in bootstrap["static_resources"]["listeners"]
        for one in listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        if one["name"] == "envoy.filters.http.ext_proc"
    }


def test_one_server_carries_everything_where_the_native_transport_is_not_wanted() -> None:
    aio = {"sidecar": {"socket": "/run/a/s.sock", "transport": "grpc_aio"}}
    bootstrap = render(VARIANTS["tools"] | aio)
    assert find_places(bootstrap).keys() == {names.CLUSTER_SIDECAR, names.CLUSTER_SIDECAR_LOGS}
    assert find_processor_clusters(bootstrap) == {names.CLUSTER_SIDECAR}


@pytest.mark.parametrize(
    ("variant", "control", "streams"),
    [
        ("native", {"pipe": {"path": "/run/a/s.sock"}}, {"pipe": {"path": "/run/a/streams.sock"}}),
        (
            "native over tcp6",
            {"socket_address": {"address": "::1", "port_value": 9903}},
            {"socket_address": {"address": "::1", "port_value": 9904}},
        ),
    ],
)
def test_the_native_transport_carries_all_filters_and_logs_and_no_xds(
    variant: str, control: dict[str, Any], streams: dict[str, Any]
) -> None:
    bootstrap = render(VARIANTS["tools"] | VARIANTS[variant])
    assert find_places(bootstrap) == {
        names.CLUSTER_SIDECAR: control,
        names.CLUSTER_SIDECAR_STREAMS: streams,
        names.CLUSTER_SIDECAR_LOGS: streams,
    }
    assert find_processor_clusters(bootstrap) == {names.CLUSTER_SIDECAR_STREAMS}
    assert bootstrap["dynamic_resources"]["ads_config"]["grpc_services"][0]["envoy_grpc"]["cluster_name"] == (
        names.CLUSTER_SIDECAR
    )


def test_every_duration_and_size_of_the_configuration_arrives() -> None:
    bootstrap = render(
        {
            "limits": {"max_request_bytes": "3MiB", "client_write_stall": "1.5s"},
        }
    )
    listener = find_listener(bootstrap, names.LISTENER_INGRESS)
    manager = find_manager(bootstrap, names.LISTENER_INGRESS)
    assert manager["http_filters"][0]["typed_config"]["max_request_bytes"] == 3 << 20
    assert manager["route_config"]["virtual_hosts"][0]["request_body_buffer_limit"] >= 3 << 20
    assert manager["stream_flush_timeout"] == "7.500s"
    assert {option["description"]: int(option["int_value"]) for option in listener["socket_options"]} == {
        "TCP_NOTSENT_LOWAT": 16 << 10,
        "TCP_USER_TIMEOUT": 7500,
    }
    for name in (names.LISTENER_INGRESS, names.LISTENER_EGRESS):
        told = find_manager(bootstrap, name)["access_log_options"]
        assert told == {"access_log_flush_interval": "0.250s"}


def test_attempts_are_told_of_often_enough_to_miss_a_request_that_nobody_confirms() -> None:
    told = [
        find_manager(render({}), name)["access_log_options"]["access_log_flush_interval"]
        for name in (names.LISTENER_INGRESS, names.LISTENER_EGRESS)
    ]
    assert told == ["10s", "2s"]


def test_without_an_admin_port_there_is_none() -> None:
    assert "admin" not in render(VARIANTS["no admin port"])
    assert render({})["admin"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9901}


def list_tool_routes() -> list[dict[str, Any]]:
    manager = find_manager(render(VARIANTS["tools"]), names.LISTENER_TOOLS)
    routes: list[dict[str, Any]] = manager["route_config"]["virtual_hosts"][0]["routes"]
    return routes


def test_without_tools_there_is_no_tool_listener() -> None:
    bootstrap = render({})
    assert [one["name"] for one in bootstrap["static_resources"]["listeners"]] == ["ingress", "egress"]
    assert not any(one["name"].startswith("tool") for one in bootstrap["static_resources"]["clusters"])


def test_a_tool_is_found_by_its_longest_prefix_and_its_url_takes_the_place_of_it() -> None:
    found = [
        (one["name"], one["match"], one["route"].get("prefix_rewrite") or one["route"]["regex_rewrite"])
        for one in list_tool_routes()
    ]
    root = {"pattern": {"regex": "^/mail/search/?"}, "substitution": "/"}
    assert found[:2] == [
        ("search", {"path_separated_prefix": "/mail/search"}, root),
        ("mail", {"path_separated_prefix": "/mail"}, "/api"),
    ]
    assert found[-1] == ("rest", {"prefix": "/"}, "/x/")


def test_nothing_of_envoy_calls_a_tool_twice() -> None:
    """No retry policy, and no connection that the tool may be closing when a call goes into it."""
    bootstrap = render(VARIANTS["tools"])
    for route in list_tool_routes():
        assert "retry_policy" not in route["route"]
        options = find_cluster(bootstrap, route["route"]["cluster"])["typed_extension_protocol_options"]
        (http,) = options.values()
        assert http["common_http_protocol_options"]["max_requests_per_connection"] == 1


@pytest.mark.parametrize(
    ("tool", "host", "sni", "matched"),
    [
        ("search", "search.example", "search.example", ("DNS", "search.example")),
        ("bank", "bank.example:444", "bank.example", ("DNS", "bank.example")),
        ("rest", "[::1]:8443", None, ("IP_ADDRESS", "::1")),
    ],
)
def test_a_tool_over_https_must_show_the_certificate_of_its_name(
    tool: str, host: str, sni: str | None, matched: tuple[str, str]
) -> None:
    (route,) = [one["route"] for one in list_tool_routes() if one["name"] == tool]
    assert route["host_rewrite_literal"] == host
    tls = find_cluster(render(VARIANTS["tools"]), f"tool_{tool}")["transport_socket"]["typed_config"]
    context = tls["common_tls_context"]["validation_context"]
    (san,) = context["match_typed_subject_alt_names"]
    assert tls.get("sni") == sni
    assert (san["san_type"], san["matcher"]["exact"]) == matched
    assert context["trusted_ca"]["filename"].startswith("/etc/ssl/")


def test_the_sidecar_has_every_call_of_a_tool_whole_and_nothing_passes_without_it() -> None:
    filters = find_manager(render(VARIANTS["tools"]), names.LISTENER_TOOLS)["http_filters"]
    buffer, processor = (one["typed_config"] for one in filters[:2])
    assert buffer["max_request_bytes"] == 64 << 10
    assert processor["processing_mode"]["request_body_mode"] == "BUFFERED"
    assert processor["processing_mode"]["response_body_mode"] == "FULL_DUPLEX_STREAMED"
    assert not processor.get("failure_mode_allow", False)
