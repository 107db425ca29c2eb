"""`envoy-ext capacity` and `status` as a person runs them: what they say, and their exit status."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from envoy_ext.adapters.ops_answers import DiscoveryView, PoolView, ReplicaView
from envoy_ext.domain.capacity import Demand, ReplicaLoad
from envoy_ext.domain.capacity_report import CapacityPolicy, Measured, PoolCapacity, build_measured_capacity
from envoy_ext.domain.downtime_cost import ReplicaSize
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import Phase
from envoy_ext.services.queues import QueueView
from tests.support.commands import run_command
from tests.support.ops_port import OpsPort

CHAT = PoolName("chat")
COST = {"downtime_per_hour": 50_000, "replica_per_hour": 2, "failures_per_year": 6, "recovery": "30m"}


def write_config(directory: Path, *replicas: dict[str, str], port: int = 9, **pool: object) -> str:
    listed = replicas or [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    urls = [{"url": f"http://10.0.0.{number}:8000", **one} for number, one in enumerate(listed, 11)]
    path = directory / "config.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "operations": {"port": port},
                "pools": [{"name": "chat", "models": ["m"], "replicas": urls, **pool}],
            }
        )
    )
    return str(path)


def measure(busiest: float, names: str = "abc") -> PoolCapacity:
    """What a sidecar has measured: 10 requests at the moment."""
    loads = [ReplicaLoad(ReplicaId(name), CHAT, True, 10.0, 32.0, 0.1) for name in names]
    return build_measured_capacity(
        CHAT,
        loads,
        {load.replica: Fingerprint(CHAT) for load in loads},
        Measured(Demand(10.0, 0.3), Demand(busiest, 0.3), 3600.0),
        CapacityPolicy(ReplicaSize(32.0)),
    )


# --- without a sidecar ------------------------------------------------------------------------


async def test_without_a_sidecar_it_says_that_the_load_is_not_known_and_what_the_file_tells(
    tmp_path: Path,
) -> None:
    replicas = ({"id": "a", "node": "n1"}, {"id": "b", "node": "n1"}, {"id": "c", "node": "n2"})
    config = write_config(tmp_path, *replicas)
    status, output, errors = await run_command("capacity", "-c", config)
    assert (status, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith("the load is not known (http://127.0.0.1:9/v1/capacity: cannot be asked")
    assert "give a load with --requests" in lines[0]
    assert lines[3].split() == ["chat", "unknown", "-", "-", "-", "-", "96", "-", "-", "-", "-"]
    assert "  the load is not known; 3 replicas have room for 96 requests at once" in lines
    assert "  warning: a, b of 3 are on node n1 and fail with it" in lines


async def test_a_single_replica_fails_whatever_the_load(tmp_path: Path) -> None:
    status, output, _ = await run_command("capacity", "-c", write_config(tmp_path, {"id": "a"}))
    assert status == 1
    assert "when replica a goes, nothing is left to take work" in output
    assert "warning: a is the only replica" in output


@pytest.mark.parametrize(
    ("requests", "status", "sentence"),
    [
        (64, 0, "all 64 requests just find a place"),
        (65, 1, "when replica a goes, 1 of 65 requests finds no place"),
    ],
)
async def test_a_load_that_somebody_puts_in_is_held_against_the_loss_of_a_replica(
    tmp_path: Path, requests: int, status: int, sentence: str
) -> None:
    config = write_config(tmp_path)
    ended, output, _ = await run_command("capacity", "-c", config, "--requests", str(requests))
    assert ended == status
    assert sentence in output
    assert output.startswith("load as given with --requests; every replica is taken to serve\n")


async def test_replicas_that_only_discovery_knows_are_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    pool = {"name": "chat", "models": ["m"], "discovery": {"dns": "vllm.example:8000"}}
    config = {"operations": {"port": 9}, "envoy": {"endpoints": "xds"}, "pools": [pool]}
    path.write_text(yaml.safe_dump(config))
    for arguments in ((), ("--requests", "60")):
        status, output, errors = await run_command("capacity", "-c", str(path), *arguments)
        assert (status, errors) == (0, "")
        assert "which replicas there are is not known: discovery tells it to a running sidecar" in output


async def test_a_port_that_is_chosen_at_the_start_cannot_be_asked_by_itself(tmp_path: Path) -> None:
    status, output, _ = await run_command("capacity", "-c", write_config(tmp_path, port=0))
    assert status == 0
    assert "operations.port is 0: name the sidecar with --url" in output


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["--requests", "many", "--requests", "other=3", "--requests", "1", "--requests", "chat=2"],
            [
                "--requests many: write a whole number of requests, such as chat=60",
                "--requests other=3: write POOL=N with one of these pools: chat",
                "--requests chat=2: the pool has a figure already",
            ],
        ),
        (["--requests", "-5"], ["--requests -5: write a whole number of requests, such as chat=60"]),
        (["--requests", "chat="], ["--requests chat=: write a whole number of requests, such as chat=60"]),
    ],
)
async def test_figures_that_say_nothing_are_one_line_each(
    tmp_path: Path, arguments: list[str], lines: list[str]
) -> None:
    status, output, errors = await run_command("capacity", "-c", write_config(tmp_path), *arguments)
    assert (status, output, errors.splitlines()) == (2, "", lines)


async def test_a_figure_and_a_sidecar_are_bad_usage(tmp_path: Path) -> None:
    arguments = ("--requests", "5", "--url", "http://127.0.0.1:9")
    status, output, errors = await run_command("capacity", "-c", write_config(tmp_path), *arguments)
    assert (status, output) == (2, "")
    assert "--url and --requests: give one of the two" in errors


async def test_a_sidecar_that_was_named_and_cannot_be_asked_is_one_line_and_no_verdict(
    tmp_path: Path,
) -> None:
    """Exit status 1 says that a pool does not hold; this says that nobody knows."""
    config = write_config(tmp_path)
    status, output, errors = await run_command("capacity", "-c", config, "--url", "http://127.0.0.1:9")
    assert (status, output, len(errors.splitlines())) == (2, "", 1)
    assert errors.startswith("--url http://127.0.0.1:9/v1/capacity: cannot be asked")


async def test_a_bad_config_is_exit_status_2(tmp_path: Path) -> None:
    config = write_config(tmp_path, capacity={"cost": {**COST, "currency": "euro"}})
    status, output, errors = await run_command("capacity", "-c", config)
    assert (status, output) == (2, "")
    assert errors == (
        f"{config}: pools[0].capacity.cost.currency: must be a currency's three letters, such as EUR\n"
    )


# --- with a sidecar ---------------------------------------------------------------------------


async def test_the_sidecar_of_the_file_is_asked_for_what_it_has_measured(tmp_path: Path) -> None:
    async with OpsPort(capacity=[measure(40)]).serving() as ops:
        config = write_config(tmp_path, port=ops.port)
        status, output, errors = await run_command("capacity", "-c", config)
        assert (status, errors) == (0, "")
        lines = output.splitlines()
        assert lines[0] == f"load as the sidecar at http://127.0.0.1:{ops.port} has measured it"
        expected = ["chat", "holds", "engines", "10", "40", "0.30", "96", "+58%", "+38%", "-", "-"]
        assert lines[3].split() == expected
        ops.capacity = [measure(80)]
        status, output, _ = await run_command("capacity", "-c", config)
    assert status == 1
    assert "when replica a goes, 16 of 80 requests find no place" in output


async def test_json_is_what_the_sidecar_answers_and_who_was_asked(tmp_path: Path) -> None:
    async with OpsPort(capacity=[measure(80)]).serving() as ops:
        url = f"http://127.0.0.1:{ops.port}"
        answered = (await ops.ask("/v1/capacity")).json["pools"]
        arguments = ("-c", write_config(tmp_path), "--url", url, "--json")
        status, output, _ = await run_command("capacity", *arguments)
    report = json.loads(output)
    assert (status, report["asked"], report["pools"]) == (1, url, answered)


async def test_cost_figures_of_the_file_need_no_restart_of_the_sidecar(tmp_path: Path) -> None:
    async with OpsPort(capacity=[measure(64, "ab")]).serving() as ops:
        config = write_config(tmp_path, port=ops.port, capacity={"cost": {**COST, "currency": "EUR"}})
        _, output, _ = await run_command("capacity", "-c", config)
    assert output.splitlines()[-1] == (
        "chat: one replica more saves 132,480 EUR a year, its own cost taken off"
    )


async def test_a_pool_that_the_sidecar_does_not_have_is_told_and_judged_by_the_file(tmp_path: Path) -> None:
    async with OpsPort(capacity=[]).serving() as ops:
        config = write_config(tmp_path, {"id": "a"}, port=ops.port)
        status, output, _ = await run_command("capacity", "-c", config)
    assert status == 1
    assert "note: the sidecar does not have this pool: was it started with another file?" in output


async def test_a_port_that_is_no_operations_port_is_one_line(tmp_path: Path) -> None:
    async with OpsPort().serving() as ops:
        url = f"http://127.0.0.1:{ops.port}/metrics"
        config = write_config(tmp_path)
        status, output, errors = await run_command("capacity", "-c", config, "--url", url)
    assert (status, output, len(errors.splitlines())) == (2, "", 1)
    assert "has no /v1/capacity: is it the operations port of a sidecar of this release?" in errors


# --- status -----------------------------------------------------------------------------------


def build_port() -> OpsPort:
    replicas = [
        ReplicaView(
            *(ReplicaId("a"), CHAT, "http://10.0.0.11:8000", "ready", True, (), 80, 6, 0, 0.25, 0.4, "1", 6),
            node="n1",
            zone="z1",
        ),
        ReplicaView(ReplicaId("b"), CHAT, "http://10.0.0.12:8000", "unready", False, ("hang", "gpu_xid")),
    ]
    inflight = {Phase.QUEUED: 0, Phase.PREFILL: 2, Phase.DECODE: 4}
    pool = PoolView(
        CHAT,
        ("m",),
        "vllm",
        "site",
        (ReplicaId("a"), ReplicaId("b")),
        "normal",
        "ready",
        ("weights: x on a",),
    )
    queue = QueueView(0, 256, 0, {"default": 0}, slots=8, free=2, drain_per_s=None)
    pools = [replace(pool, inflight=inflight, queue=queue)]
    return OpsPort(replicas=replicas, pools=pools, capacity=[measure(80)])


async def test_status_shows_pools_replicas_streams_by_phase_and_whether_one_may_go() -> None:
    async with build_port().serving() as ops:
        status, output, errors = await run_command("status", "--url", f"http://127.0.0.1:{ops.port}")
    assert (status, errors) == (0, "")
    assert output.splitlines() == [
        "POOL  AVAILABILITY  WHY    BOUNDARY  QUEUED  PREFILL  DECODE  FREE  N+1",
        "chat  normal        ready  site      0       2        4       2/8   fails",
        "",
        "REPLICA  POOL  STATE    WHY            WEIGHT  RUNNING  WAITING  KV   AGE    STREAMS  NODE  ZONE  "
        "URL",
        "a        chat  ready    -              80      6        0        25%  0.4 s  6        n1    z1    "
        "http://10.0.0.11:8000",
        "b        chat  unready  hang, gpu_xid  -       -        -        -    -      -        -     -     "
        "http://10.0.0.12:8000",
        "",
        "chat: when replica a goes, 16 of 80 requests find no place; the tighter limit is requests at once",
        "chat: fingerprints differ: weights: x on a",
    ]


async def test_status_says_since_when_a_source_of_replicas_fails() -> None:
    port = build_port()
    failing = DiscoveryView("kubernetes", True, "unreachable", "the API cannot be reached", 63.21)
    port.pools = [
        replace(port.pools[0], discovery=failing),
        replace(port.pools[0], name=PoolName("embed"), discovery=replace(failing, listed=False)),
        replace(port.pools[0], name=PoolName("other"), discovery=DiscoveryView("dns", True)),
    ]
    async with port.serving() as ops:
        _, output, _ = await run_command("status", "--url", f"http://127.0.0.1:{ops.port}")
    told = "the API cannot be reached"
    assert [line for line in output.splitlines() if "discovery" in line] == [
        f"chat: discovery by kubernetes fails since 63.2 s, the last list stands: {told}",
        f"embed: discovery by kubernetes fails since 63.2 s, nobody was listed yet: {told}",
    ]


async def test_status_as_json_holds_what_each_path_answers() -> None:
    async with build_port().serving() as ops:
        url = f"http://127.0.0.1:{ops.port}"
        _, output, _ = await run_command("status", "--json", "--url", url)
        pools, replicas, capacity = [
            (await ops.ask(f"/v1/{path}")).json for path in ("pools", "replicas", "capacity")
        ]
    assert json.loads(output) == {
        "pools": pools["pools"],
        "replicas": replicas["replicas"],
        "capacity": capacity["pools"],
    }


async def test_status_of_nobody_is_one_line() -> None:
    status, output, errors = await run_command("status", "--url", "http://127.0.0.1:9")
    assert (status, output, len(errors.splitlines())) == (1, "", 1)
