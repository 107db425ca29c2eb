"""Resources over xDS: what stays in the bootstrap, and that the rest is what a full bootstrap would hold."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from betterproto2 import Casing

from envoy_ext.adapters.envoy_process import find_envoy, validate_bootstrap
from envoy_ext.bootstrap.render import render_bootstrap, render_full_bootstrap
from envoy_ext.bootstrap.resources import build_resources
from envoy_ext.config import Config, parse_config
from envoy_ext.domain import names
from envoy_ext.wiring.resource import build_fixed_resources
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import build_empty_assignment
from envoy_ext.xds.snapshot import build_snapshot

CHAT: dict[str, Any] = {"name": "chat", "models": ["m"], "replicas": [{"url": "http://10.0.0.11:8000"}]}
CODE: dict[str, Any] = {"name": "code", "models": ["n"], "replicas": [{"url": "http://10.0.0.12:8000"}]}
TOOLS: dict[str, Any] = {
    "listener": {"port": 8081},
    "routes": [{"name": "mail", "prefix": "/mail", "url": "https://mail.example/api"}],
}


def parse(**sections: Any) -> Config:
    return parse_config({"pools": [CHAT], "envoy": {"resources": "xds"}, **sections}, "test")


def list_versions(config: Config) -> dict[tuple[Kind, str], str]:
    fixed = build_fixed_resources(config)
    return {(kind, one.name): one.version for kind, resources in fixed.items() for one in resources}


def list_changed(config: Config) -> set[tuple[Kind, str]]:
    """What a configuration changes, adds or removes, against the plain one."""
    before, after = list_versions(parse()), list_versions(config)
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def test_the_bootstrap_holds_the_way_to_the_sidecar_and_no_more() -> None:
    bootstrap = render_bootstrap(parse())
    assert bootstrap.keys() == {"node", "admin", "dynamic_resources", "static_resources"}
    assert bootstrap["static_resources"].keys() == {"clusters"}
    assert [one["name"] for one in bootstrap["static_resources"]["clusters"]] == [names.CLUSTER_SIDECAR]


def test_envoy_waits_for_clusters_and_listeners_as_long_as_it_takes() -> None:
    """Otherwise it would call itself ready after 15 s for each, and listen at nothing."""
    dynamic = render_bootstrap(parse())["dynamic_resources"]
    for source in (dynamic["cds_config"], dynamic["lds_config"]):
        assert (source["ads"], source["initial_fetch_timeout"]) == ({}, "0s")


@pytest.mark.parametrize("envoy", [{"resources": "xds"}, {"endpoints": "xds"}])
def test_a_broken_stream_is_opened_again_within_two_seconds(envoy: dict[str, str]) -> None:
    """Envoy's own patience grows to 30 s."""
    ads = render_bootstrap(parse(envoy=envoy))["dynamic_resources"]["ads_config"]
    back_off = ads["grpc_services"][0]["envoy_grpc"]["retry_policy"]["retry_back_off"]
    assert back_off == {"base_interval": "0.200s", "max_interval": "2s"}


def test_another_transport_changes_nothing_in_the_bootstrap() -> None:
    place = {"socket": "/run/a/s.sock"}
    plain, native = (parse(sidecar=place | {"transport": one}) for one in ("grpc_aio", "native"))
    assert render_bootstrap(plain) == render_bootstrap(native)
    assert list_versions(plain) != list_versions(native)


@pytest.mark.with_envoy
async def test_envoy_accepts_the_bootstrap(tmp_path: Path) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(render_bootstrap(parse())))
    assert await validate_bootstrap(find_envoy(), path) is None


def test_the_resources_are_what_a_full_bootstrap_holds() -> None:
    """All but where listeners have their routes from."""
    native = {"socket": "/run/a/s.sock", "transport": "native"}
    config = parse(pools=[CHAT, CODE], tools=TOOLS, jobs={}, sidecar=native)
    built = build_resources(config)
    full = render_full_bootstrap(config)["static_resources"]
    clusters = {one["name"]: one for one in full["clusters"]}
    del clusters[names.CLUSTER_SIDECAR]
    assert {one.name: plain(one) for one in built.clusters} == clusters
    routes = {one.name: plain(one) for one in built.routes}
    for listener in map(plain, built.listeners):
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        by_name = manager.pop("rds")
        assert by_name["config_source"]["ads"] == {}
        manager["route_config"] = routes.pop(by_name["route_config_name"])
        assert listener == next(one for one in full["listeners"] if one["name"] == listener["name"])
    assert routes == {}


def plain(message: Any) -> Any:
    """As JSON has it, where a whole number is one however it was written."""
    return json.loads(json.dumps(message.to_dict(casing=Casing.SNAKE)))


def test_what_is_offered_fits_together() -> None:
    fixed = build_fixed_resources(parse(pools=[CHAT, CODE]))
    assert fixed.keys() == {Kind.CDS, Kind.LDS, Kind.RDS}
    endpoints = [build_empty_assignment(f"pool_{name}") for name in ("chat", "code")]
    assert build_snapshot({**fixed, Kind.EDS: endpoints}).find_inconsistencies() == ()
    assert build_snapshot({**fixed, Kind.EDS: endpoints[:1]}).find_inconsistencies() != ()


def test_the_same_configuration_changes_nothing() -> None:
    """So a restart of the sidecar drains no listener."""
    assert list_changed(parse()) == set()
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n" + (
        "from tests.golden.test_bootstrap_xds import list_versions, parse\n"
        "print(sorted(list_versions(parse()).values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sorted(list_versions(parse()).values())), "in another process"


@pytest.mark.parametrize(
    ("sections", "changed"),
    [
        ({"pools": [CHAT, CODE]}, {(Kind.CDS, "pool_code"), (Kind.RDS, "egress")}),
        ({"pools": [CHAT | {"engine": "llamacpp"}]}, {(Kind.CDS, "pool_chat")}),
        ({"jobs": {}}, {(Kind.LDS, "jobs"), (Kind.RDS, "jobs")}),
        ({"pools": [CHAT | {"replicas": CODE["replicas"]}]}, set()),
        ({"limits": {"max_request_bytes": "1MiB"}}, {(Kind.LDS, "ingress"), (Kind.RDS, "ingress")}),
        ({"limits": {"client_write_stall": "9s"}}, {(Kind.LDS, "ingress"), (Kind.LDS, "egress")}),
        ({"ingress": {"port": 8081}}, {(Kind.LDS, "ingress")}),
        ({"retry_budget": {"percent": 5}}, {(Kind.CDS, names.CLUSTER_EGRESS)}),
        (
            {"on_upstream_failure": {"before_first_delta": {"max_attempts": 3}}},
            {(Kind.RDS, "ingress")},
        ),
        ({"lease": {"ttl": "9s"}, "admission": {"queue": 1}, "shutdown": {"grace": 1}}, set()),
    ],
)
def test_a_change_reaches_what_it_is_about_and_nothing_else(
    sections: dict[str, Any], changed: set[tuple[Kind, str]]
) -> None:
    assert list_changed(parse(**sections)) == changed


def test_with_a_full_bootstrap_nothing_is_offered_and_none_of_envoys_messages_is_loaded() -> None:
    """They take a second and 15 MB, which a sidecar that renders nothing should not pay."""
    assert build_fixed_resources(parse(envoy={"resources": "static"})) == {}
    code = (
        "import sys, envoy_ext.app\n"
        "print([name for name in sys.modules if name.startswith(('betterproto2', 'envoy_data_plane'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
