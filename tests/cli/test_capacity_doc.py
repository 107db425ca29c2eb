"""docs/capacity.md shows what the command says, for the file that it shows.

To write the outputs anew: CAPACITY_DOC=write python -m pytest tests/cli/test_capacity_doc.py
"""

import os
import re
from pathlib import Path

import pytest

from envoy_ext.config import load_config
from envoy_ext.domain.capacity import Demand, ReplicaLoad
from envoy_ext.domain.capacity_report import Measured, PoolCapacity, build_measured_capacity
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.wiring.capacity import build_capacity_policy
from tests.support.commands import run_command
from tests.support.ops_port import OpsPort

DOC = Path(__file__).parents[2] / "docs" / "capacity.md"
BLOCK = re.compile(r"```\n\$ envoy-ext (capacity -c config\.yaml[^\n]*)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall(DOC.read_text())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    found = re.search(r"```yaml\n(pools:.*?)```", DOC.read_text(), re.DOTALL)
    assert found is not None
    path = tmp_path / "config.yaml"
    path.write_text(found[1])
    return path


def measure(config: Path) -> PoolCapacity:
    """What the sidecar of the example has measured: two replicas are seen, the page of c is old."""
    pool = load_config(config).pools[0]
    loads = [
        ReplicaLoad(
            replica=replica.id,
            pool=pool.name,
            able=True,
            requests=requests,
            concurrency=32.0,
            kv_cache_usage=kv_cache,
            node=replica.node,
            zone=replica.zone,
            measured=kv_cache is not None,
        )
        for replica, requests, kv_cache in zip(
            pool.replicas, (18.0, 15.0, 9.0), (0.75, 0.65, None), strict=True
        )
    ]
    return build_measured_capacity(
        pool.name,
        loads,
        {load.replica: Fingerprint(pool.name) for load in loads},
        Measured(Demand(42.0, 1.78), Demand(60.0, 2.3), 2400.0),
        build_capacity_policy(pool),
    )


def test_the_doc_shows_the_command_with_a_sidecar_and_without_one() -> None:
    assert [command for command, _ in BLOCKS] == [
        "capacity -c config.yaml",
        "capacity -c config.yaml --requests 60",
    ]


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
async def test_an_output_in_the_doc_is_what_the_command_says(command: str, shown: str, config: Path) -> None:
    arguments = command.replace("config.yaml", str(config)).split()
    if "--requests" in command:
        _, output, errors = await run_command(*arguments)
    else:
        async with OpsPort(capacity=[measure(config)]).serving() as ops:
            url = f"http://127.0.0.1:{ops.port}"
            _, output, errors = await run_command(*arguments, "--url", url)
            output = output.replace(url, "http://127.0.0.1:9902")
    assert errors == ""
    if os.environ.get("CAPACITY_DOC") == "write":
        DOC.write_text(
            DOC.read_text().replace(
                f"$ envoy-ext {command}\n{shown}```", f"$ envoy-ext {command}\n{output}```"
            )
        )
    else:
        assert output == shown
