"""The JSON Schema accepts what the reader accepts, and refuses whatever a schema can see to be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envoy_ext.config import config_schema
from tests.config.json_schema import accepts

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "envoy" / "config.yaml"
GOOD = [EXAMPLE, *sorted((HERE / "good").glob("*.yaml"))]

# Bad files whose mistake no schema of this kind can see: it is no YAML, or it takes two places, or
# the form is finer than a pattern.
BEYOND_A_SCHEMA = {
    "loop_lag",
    "address_is_a_name",
    "address_twice",
    "alias_unknown",
    "bracket_not_closed",
    "callers_from_in_vain",
    "callers_header_of_anybody",
    "callers_header_taken",
    "callers_nowhere",
    "circuit_counts_nothing",
    "class_name_not_text",
    "date_for_text",
    "date_that_is_none",
    "derived_id_taken_by_other_pool",
    "derived_id_too_long",
    "discovery_no_source",
    "discovery_of_the_same",
    "discovery_two_sources",
    "discovery_with_replicas",
    "discovery_without_xds",
    "duration_not_finite",
    "duration_zero",
    "egress_socket_is_the_default_sidecars",
    "egress_socket_is_the_sidecars",
    "egress_socket_too_long",
    "endpoints_apart_from_resources",
    "jobs_apart",
    "jobs_default_results_outlive_jobs",
    "jobs_fill_the_journal",
    "jobs_requests_too_large",
    "jobs_results_outlive_jobs",
    "jobs_socket_taken",
    "jobs_without_room",
    "jobs_without_room_in_memory",
    "journal_redis_cluster_database",
    "journal_redis_cluster_socket",
    "journal_redis_half_a_certificate",
    "journal_redis_half_a_login",
    "journal_redis_keys_of_sqlite",
    "journal_redis_max_bytes",
    "journal_redis_nowhere",
    "journal_redis_sentinel_tls_keys",
    "journal_redis_socket",
    "journal_redis_tls_keys_without_tls",
    "journal_redis_two_logins",
    "journal_redis_two_places",
    "journal_redis_url_database",
    "journal_redis_url_query",
    "journal_redis_wait_for_nobody",
    "journal_redis_with_file",
    "journal_redis_wait_for_too_long",
    "journal_retention_bounds",
    "journal_shared_memory",
    "key_not_text",
    "key_twice",
    "key_twice_in_replica",
    "kv_cache_in_percent",
    "ladder_order",
    "lease_renewed_too_late",
    "list_for_key",
    "model_in_two_pools",
    "model_twice_in_pool",
    "name_twice_in_other_case",
    "native_egress_socket_taken",
    "native_on_every_address",
    "native_port_beside_socket",
    "native_port_of_the_ingress",
    "native_port_taken",
    "native_port_without_native",
    "native_streams_socket_taken",
    "native_streams_socket_too_long",
    "native_without_port",
    "no_replicas",
    "outage_class_in_vain",
    "outage_no_class",
    "pool_name_twice",
    "port_of_a_default",
    "port_of_the_lease_service",
    "port_of_the_sidecar",
    "port_used_twice",
    "replica_id_is_address_of_other",
    "replica_id_twice",
    "sidecar_address_alone",
    "sidecar_nowhere",
    "sidecar_port_alone",
    "sidecar_socket_and_port",
    "size_too_large",
    "size_too_small",
    "socket_too_long",
    "stale_before_next_scrape",
    "tab_for_indent",
    "tag_unknown",
    "thresholds_in_wrong_order",
    "tools_nowhere",
    "tools_port_of_the_ingress",
    "tools_socket_and_port",
    "tools_socket_of_envoy",
    "tools_socket_of_the_sidecar",
    "tools_twice",
    "two_documents",
    "url_ip_out_of_range",
    "url_ip_too_short",
    "url_ipv6_broken",
    "url_port",
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config_schema()


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_the_schema_accepts_a_good_file(path: Path, schema: dict[str, Any]) -> None:
    assert accepts(yaml.safe_load(path.read_text()), schema, schema)


BAD = sorted(path for path in (HERE / "bad").glob("*.yaml") if path.stem not in BEYOND_A_SCHEMA)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_the_schema_refuses_a_bad_file(path: Path, schema: dict[str, Any]) -> None:
    assert not accepts(yaml.safe_load(path.read_text()), schema, schema)


def test_every_excluded_file_exists() -> None:
    assert {path.stem for path in (HERE / "bad").glob("*.yaml")} >= BEYOND_A_SCHEMA


def test_the_schema_is_json_and_explains_its_keys(schema: dict[str, Any]) -> None:
    again = json.loads(json.dumps(schema))
    assert again == schema
    retries = again["$defs"]["BeforeFirstDelta"]["properties"]["max_attempts"]
    assert retries["description"] == "The first attempt counts."
    assert retries["default"] == 2
