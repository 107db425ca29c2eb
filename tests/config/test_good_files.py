"""What a good file becomes: its values, the defaults of the rest, and what is derived from them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from envoy_ext.config import Config, Kubernetes, Origin, Sidecar, WebPlace, load_config, parse_config
from envoy_ext.domain.circuit_evidence import FailureClass
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.errors import ConfigError
from envoy_ext.wiring.fleet import build_circuit

GOOD = Path(__file__).parent / "good"
EXAMPLE = Path(__file__).parents[2] / "envoy" / "config.yaml"


def load(name: str) -> Config:
    return load_config(GOOD / f"{name}.yaml")


def test_the_smallest_file_has_the_documented_defaults() -> None:
    config = load("smallest")
    pool = config.pools[0]
    assert (config.ingress.address, config.ingress.port) == ("0.0.0.0", 8080)
    assert (config.operations.address, config.operations.port) == ("127.0.0.1", 9902)
    assert config.operations.token_file is None
    assert config.sidecar.socket == "/run/envoy-ext/sidecar.sock"
    assert config.egress_socket == "/run/envoy-ext/egress.sock"
    assert config.envoy.concurrency == 2
    assert config.envoy.admin is not None
    assert (config.envoy.admin.address, config.envoy.admin.port) == ("127.0.0.1", 9901)
    assert (config.journal.store, config.journal.path) == ("sqlite", "envoy-ext.db")
    assert config.journal.synchronous == "normal"
    assert config.journal.retention == 604_800.0
    assert config.limits.max_request_bytes == 16 * 1024 * 1024
    assert config.limits.max_sse_event_bytes == 1024 * 1024
    assert config.limits.client_write_stall == 60
    assert config.limits.max_event_loop_lag == 0.1
    assert config.limits.max_requests == 20_000
    assert (config.retry_budget.percent, config.retry_budget.min_concurrency) == (20, 3)
    assert (config.lease.ttl, config.lease.renew, config.lease.margin) == (6, 2, 1)
    assert (config.admission.queue, config.admission.max_wait, config.admission.classes) == (256, 30, {})
    assert config.data_classes == {}
    idempotency = config.idempotency
    assert (idempotency.answers, idempotency.max_answer_bytes) == ("non_streaming", 1 << 20)
    assert (idempotency.while_running, idempotency.max_wait, idempotency.max_waiting) == ("refuse", 60, 256)
    assert config.jobs is None
    assert config.pass_through == ()
    assert config.shutdown.grace == 30
    assert pool.boundary == "local"
    assert (pool.capacity.concurrency, pool.capacity.assumed_concurrency) == (None, 32)
    assert (pool.readiness.waiting.leave, pool.readiness.waiting.return_) == (16, 4)
    assert (pool.readiness.kv_cache.leave, pool.readiness.kv_cache.return_) == (0.95, 0.85)
    assert (pool.readiness.gpu_temperature.leave, pool.readiness.gpu_temperature.return_) == (90, 80)
    assert (pool.readiness.scrape, pool.readiness.stale, pool.readiness.hold) == (1, 10, 5)
    assert (pool.readiness.hang, pool.readiness.warmup) == (120, True)


def test_a_circuit_that_a_file_says_nothing_of_is_the_cores_own() -> None:
    assert build_circuit(load("smallest").pools[0]) == CircuitPolicy()


def test_every_key_of_a_circuit_reaches_the_core() -> None:
    assert build_circuit(load("every_key").pools[0]) == CircuitPolicy(
        window_s=60.0,
        min_attempts=20,
        failure_rate=0.8,
        in_a_row={FailureClass.CONNECT: 2, FailureClass.RESET: 7, FailureClass.SILENCE: 1},
        open_s=0.5,
        open_max_s=0.5,
        trial_requests=1,
        trial_successes=5,
        max_open=1.0,
        probes=False,
    )


def test_the_failover_policy_defaults_to_two_attempts_and_no_retry_after_the_first_delta() -> None:
    policy = load("smallest").on_upstream_failure
    before = policy.before_first_delta
    assert before.require == ("source_attempt_fenced", "retry_budget_available")
    assert before.action == "retry_prefill_on_healthy_replica"
    assert (before.max_attempts, before.max_replay_prompt_tokens, before.max_replay_delay) == (2, 32_000, 20)
    assert policy.after_first_delta.automatic_retry is False
    assert policy.attempts_allowed == 2


def test_an_action_of_fail_allows_one_attempt_whatever_max_attempts_says() -> None:
    policy = load("every_key").on_upstream_failure
    assert policy.before_first_delta.max_attempts == 3
    assert policy.attempts_allowed == 1


def test_every_key_is_read() -> None:
    config = load("every_key")
    chat, embed = config.pools
    assert config.envoy.admin is not None
    assert config.envoy.admin.address == "::1"
    assert config.egress_socket == "/run/other/e.sock"
    assert (config.sidecar.transport, config.streams_socket) == ("native", "/run/other/streams.sock")
    assert (config.envoy.resources, config.envoy.endpoints) == ("static", "xds")
    assert config.limits.client_write_stall == 120
    assert config.limits.max_event_loop_lag == 0.25
    assert config.limits.max_requests == 500
    assert config.lease.margin == 0.5
    assert config.lease.http is not None
    assert (config.lease.http.address, config.lease.http.port) == ("127.0.0.1", 9903)
    assert config.lease.grpc is not None
    assert (config.lease.grpc.address, config.lease.grpc.port) == ("10.0.0.2", 9904)
    assert config.retry_budget.percent == 12.5
    assert config.journal.synchronous == "full"
    journal = config.journal
    assert (journal.retention, journal.max_operations, journal.max_bytes) == (129_600.0, 5_000, 64 << 20)
    assert (config.journal.timeout, config.journal.on_unavailable) == (2.0, "continue_unrecorded")
    assert [name for name, one in config.admission.classes.items() if one.unrecorded] == ["batch"]
    assert chat.models == ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1:8b")
    assert chat.boundary == "external:partner-1"
    assert chat.fingerprint.parallel == "tp2"
    assert chat.fingerprint.adapters == ("sql", "chat")
    assert chat.replicas[0].gpus == (0, 1)
    assert chat.readiness.scrape == 0.5
    assert chat.readiness.hold == 0
    assert chat.readiness.waiting.return_ == 2
    assert chat.capacity.concurrency == 8
    assert chat.capacity.cost is not None
    assert (chat.capacity.cost.downtime_per_hour, chat.capacity.cost.replica_per_hour) == (5000, 2.5)
    assert (chat.capacity.cost.failures_per_year, chat.capacity.cost.recovery) == (4, 600)
    assert (chat.capacity.cost.currency, embed.capacity.cost) == ("EUR", None)
    assert embed.engine == "generic"
    assert config.admission.classes["interactive"].max_wait == 5
    assert config.admission.classes["batch"].max_wait is None
    batch, chat = config.admission.classes["batch"].ladder, config.admission.classes["chat"].ladder
    assert [next(iter(one.model_fields_set)) for one in batch] == [
        *("shorten_generation", "shorten_context", "pool", "hand_off", "template", "refuse")
    ]
    assert batch[0].shorten_generation is not None
    assert batch[0].shorten_generation.max_tokens == 256
    assert batch[3].hand_off is not None
    assert batch[3].hand_off.timeout == 1
    assert chat[1].job is True
    assert chat[2].template is not None
    assert chat[2].template.file == "/etc/envoy-ext/busy.txt"
    assert config.admission.classes["payment"].side_effects is True
    assert config.data_classes["default"].boundaries == ("local", "site")
    assert config.data_classes["public"].boundaries == ("local", "site", "external:partner-1")
    jobs = config.jobs
    assert jobs is not None
    assert (jobs.max_waiting, config.max_waiting_bytes, jobs.max_age) == (50, 32 << 20, 600)
    assert (jobs.keep_results, jobs.max_result_bytes, jobs.concurrency) == (43_200, 1 << 20, 2)
    idempotency = config.idempotency
    assert (idempotency.answers, idempotency.max_answer_bytes) == ("all", 256 << 10)
    assert (idempotency.while_running, idempotency.max_wait, idempotency.max_waiting) == ("wait", 90, 8)
    assert config.pass_through == ("/v1/audio/", "/version")
    assert config.tools is not None
    assert (config.tools.listener.address, config.tools.listener.port) == ("127.0.0.2", 18081)
    assert config.tools.require_operation
    assert (config.tools.max_request_bytes, config.tools.max_result_bytes) == (2 << 20, 64 << 10)
    mail, search = config.tools.routes
    assert (mail.path_prefix, mail.place.path, mail.timeout) == ("/mail", "/api", 5)
    assert (mail.idempotent, mail.get_is_safe) == (False, True)
    assert mail.ignore_arguments == ("tool_call_id", "call_id")
    assert (search.idempotent, search.get_is_safe, search.host) == (True, False, "search.internal")
    assert search.place == WebPlace(True, Origin("search.example", 443), "")
    assert (search.ca_file, search.ignore_arguments) == ("/etc/ssl/internal.pem", ("call_id", "trace"))
    assert config.jobs_socket == "/run/other/jobs.sock"
    assert config.shutdown.grace == 0


def test_a_replica_is_called_by_its_host_and_port_unless_it_has_an_id() -> None:
    chat, embed = load("every_key").pools
    assert [replica.id for replica in chat.replicas] == ["a", "2001:db8::12:8000", "gpu-3.example:80"]
    assert [replica.id for replica in embed.replicas] == ["10.0.0.11:8001"]


def test_an_origin_is_written_as_envoy_writes_addresses() -> None:
    chat = load("every_key").pools[0]
    assert [r.origin.host_port for r in chat.replicas] == [
        "10.0.0.11:8000",
        "[2001:db8::12]:8000",
        "gpu-3.example:80",
    ]
    assert [r.origin.is_ip for r in chat.replicas] == [True, True, False]


def test_a_sidecar_over_tcp_leaves_envoys_own_socket_in_the_default_directory() -> None:
    config = load("sidecar_over_tcp")
    assert config.sidecar == Sidecar(address="127.0.0.1", port=9903)
    assert config.egress_socket == "/run/envoy-ext/egress.sock"
    assert config.envoy.admin is None


@pytest.mark.parametrize("envoy", [{}, {"endpoints": "xds"}])
def test_where_resources_come_over_xds_endpoints_do(envoy: dict[str, str]) -> None:
    assert load("resources_over_xds").envoy.endpoints == "xds"
    pools = [{"name": "chat", "models": ["m"], "replicas": [{"url": "http://127.0.0.1:1"}]}]
    config = parse_config({"pools": pools, "envoy": {"resources": "xds", **envoy}}, "test")
    assert (config.envoy.resources, config.envoy.endpoints) == ("xds", "xds")


def test_bare_numbers_are_seconds_and_bytes() -> None:
    config = load("bare_numbers")
    assert config.limits.max_request_bytes == 1_048_576
    assert config.limits.client_write_stall == 90
    assert config.lease.ttl == 6.5


def test_a_merge_key_may_be_overridden_and_is_no_repeated_key() -> None:
    first, second = load("merged_keys").pools[0].replicas
    assert (first.id, second.id) == ("a", "b")
    assert first.zone == second.zone == "z1"


def test_one_port_may_be_used_on_two_addresses() -> None:
    assert load("same_port_on_two_addresses").sidecar.port == 9000


def test_both_sockets_move_into_a_private_directory() -> None:
    config = load("sidecar_over_tcp").with_sockets_in("/tmp/private")
    assert config.sidecar == Sidecar(socket="/tmp/private/sidecar.sock")
    assert config.egress_socket == "/tmp/private/egress.sock"
    assert config.envoy.admin is None


def test_the_native_transport_moves_with_them() -> None:
    config = load("native_over_tcp")
    assert (config.sidecar.streams_port, config.streams_socket) == (9904, None)
    moved = config.with_sockets_in("/tmp/private")
    assert moved.sidecar == Sidecar(socket="/tmp/private/sidecar.sock", transport="native")
    assert moved.streams_socket == "/tmp/private/streams.sock"


def test_the_native_transport_is_there_where_it_has_a_place() -> None:
    assert load("smallest").sidecar.native
    assert load("smallest").streams_socket == "/run/envoy-ext/streams.sock"
    for place, native in (
        ({"socket": "/run/a.sock", "transport": "grpc_aio"}, False),
        ({"address": "127.0.0.1", "port": 9903}, False),
        ({"address": "10.0.0.9", "port": 9903}, False),
        ({"address": "127.0.0.1", "port": 9903, "streams_port": 9904}, True),
    ):
        assert Sidecar(**place).native is native


def test_a_private_directory_too_deep_for_a_socket_is_a_mistake_with_its_path() -> None:
    with pytest.raises(ConfigError, match="longer than 107 bytes"):
        load("smallest").with_sockets_in("/tmp/" + "x" * 120)


def test_a_configuration_cannot_be_changed() -> None:
    config = load("smallest")
    with pytest.raises(ValidationError, match="frozen"):
        config.ingress.port = 1  # type: ignore[misc]


def test_plain_data_is_parsed_without_a_file() -> None:
    pool = {"name": "chat", "models": ["m"], "replicas": [{"url": "http://127.0.0.1:1"}]}
    assert parse_config({"pools": [pool]}, "demo").pools[0].name == "chat"
    with pytest.raises(ConfigError) as refused:
        parse_config({"pools": [pool], "ports": 1}, "demo")
    assert refused.value.mistakes[0].startswith("demo: ports: unknown key")


def test_the_example_shows_the_true_default_of_every_key(tmp_path: Path) -> None:
    """Taking the one # from every key of the example changes nothing but what is written."""
    uncommented = tmp_path / "config.yaml"
    uncommented.write_text(re.sub(r"^( *)# ", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    assert load_config(uncommented) == load_config(EXAMPLE)


def test_the_example_names_every_key() -> None:
    text = EXAMPLE.read_text()
    missing = [name for name in _list_keys(Config.model_json_schema()) if not re.search(rf"\b{name}:", text)]
    assert missing == []


def _list_keys(schema: dict[str, dict[str, dict[str, object]]]) -> set[str]:
    keys = set(schema["properties"])
    for definition in schema["$defs"].values():
        keys |= set(definition["properties"])
    return keys


def test_reading_a_configuration_loads_none_of_envoys_messages() -> None:
    """They take a second or two, and `status` or `operations` must not pay for them."""
    code = (
        "import sys, envoy_ext.config, envoy_ext.bootstrap\n"
        "slow = ('betterproto2', 'envoy_data_plane', 'google.', 'envoy.')\n"
        "print([name for name in sys.modules if name.startswith(slow)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_replicas_may_be_found_in_three_ways() -> None:
    chat, big, embed, rerank = load("discovery").pools
    assert [pool.discovery.source for pool in (chat, big, embed, rerank)] == [*3 * ["kubernetes"], "dns"]
    assert chat.discovery.kubernetes == Kubernetes(service="vllm", port="http")
    assert big.discovery.kubernetes is not None
    assert (big.discovery.kubernetes.port, big.discovery.kubernetes.namespace) == (8000, "ml-2")
    assert rerank.discovery.dns_origin == Origin("rerank.internal", 8000)
    assert (chat.replicas, rerank.replicas) == ((), ())
    assert load("smallest").pools[0].discovery.source == "static"


SMALL = {
    "pools": [{"name": "chat", "models": ["m"], "replicas": [{"url": "http://10.0.0.11:8000"}]}],
    "jobs": {},
}


def test_a_section_without_keys_is_enough_to_have_jobs() -> None:
    config = parse_config(SMALL, "config.yaml")
    jobs = config.jobs
    assert jobs is not None
    assert (jobs.max_waiting, config.max_waiting_bytes, jobs.max_age) == (1000, 256 << 20, 3600)
    assert (jobs.keep_results, jobs.max_result_bytes, jobs.concurrency) == (86_400, 16 << 20, 4)


def test_jobs_that_wait_in_memory_have_a_part_of_it() -> None:
    config = parse_config({**SMALL, "journal": {"store": "memory"}}, "config.yaml")
    assert config.max_waiting_bytes == 64 << 20
