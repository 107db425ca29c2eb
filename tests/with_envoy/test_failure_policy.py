"""The failure policy, from its file, on each store: what everybody saw is judged, kept, and the same.

All stores play at once, each with an Envoy, a sidecar and engines of its own: the waits are the test.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from envoy_ext.adapters import journal_redis, journal_redis_way
from envoy_ext.adapters.envoy_process import find_envoy
from envoy_ext.drills.cut_network import find_obstacle
from envoy_ext.drills.scenarios.judge import judge
from envoy_ext.drills.scenarios.made_up import make_up
from envoy_ext.drills.scenarios.model import read_scenarios
from envoy_ext.drills.scenarios.report import Run, build_input, load_evidence
from envoy_ext.drills.scenarios.runner import Played, choose, find_differences, play_everywhere, play_on, tell
from envoy_ext.drills.scenarios.stores import STORES

# The first test waits for all that is played: much longer than that takes on a busy machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SCENARIOS = read_scenarios()
NAMES = [scenario.name for scenario in SCENARIOS.scenarios]
SEED, OTHER_SEED = "7", "8"
ONE = "lost_before_the_first_byte"


@dataclass
class Everything:
    """What was played, and where it is kept."""

    played: dict[str, Played]
    other_seed: Run
    directory: Path

    def find(self, store: str, name: str) -> Run:
        played = self.played[store]
        if name in played.skipped:
            pytest.skip(played.skipped[name])
        return next(run for run in played.runs if run.scenario.name == name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    directory, envoy = tmp_path_factory.mktemp("runs"), find_envoy()
    others = tmp_path_factory.mktemp("others")
    with pytest.MonkeyPatch.context() as patched:
        # One event loop starts them all, and is busy for longer than a connection may take otherwise.
        patched.setattr(journal_redis_way, "CONNECT_S", 20.0)
        patched.setattr(journal_redis, "OPEN_S", 60.0)
        played, other = await asyncio.gather(
            play_everywhere(STORES, SCENARIOS, SEED, envoy, directory),
            play_on("memory", choose(SCENARIOS, [ONE]), OTHER_SEED, envoy, others),
        )
    print("\n".join(tell(played, ())))
    return Everything({one.store: one for one in played}, other.runs[0], directory)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("store", STORES)
async def test_everybody_saw_what_the_policy_says(everything: Everything, store: str, name: str) -> None:
    run = everything.find(store, name)
    assert [finding for finding in run.findings if not finding.holds] == []


async def test_everybody_saw_the_same_on_every_store(everything: Everything) -> None:
    assert find_differences(list(everything.played.values())) == []


async def test_nothing_is_left_out_where_a_network_can_be_cut(everything: Everything) -> None:
    if (obstacle := await find_obstacle()) is not None:
        pytest.skip(obstacle)
    for played in everything.played.values():
        assert [run.scenario.name for run in played.runs] == NAMES


@pytest.mark.parametrize("store", STORES)
async def test_a_run_is_kept_and_can_be_judged_from_its_files(everything: Everything, store: str) -> None:
    for name in NAMES:
        if name in everything.played[store].skipped:
            continue
        run, kept = everything.find(store, name), everything.directory / store / name
        assert load_evidence(kept) == run.evidence
        assert judge(run.scenario.expect, load_evidence(kept), SCENARIOS.model_revision) == run.findings
        assert (kept / "seed").read_text() == f"{SEED}\n"
        assert (kept / "model_revision").read_text() == f"{SCENARIOS.model_revision}\n"
        assert json.loads((kept / "input.json").read_text()) == json.loads(
            json.dumps(build_input(run.scenario, SEED))
        )
        assert json.loads((kept / "verdict.json").read_text())["holds"] is run.holds
        environment = json.loads((kept / "environment.json").read_text())
        assert environment["config"]["journal"]["store"] == store
        recorded = [line["is"] for line in run.evidence.trace if line["kind"] == "recorded"]
        assert recorded[0] == "OperationBegun"
        assert recorded.count("OperationEnded") == 1


async def test_one_seed_gives_one_text_and_another_seed_another(everything: Everything) -> None:
    texts = {everything.find(store, ONE).evidence.client.text for store in STORES}
    assert len(texts) == 1
    assert len(texts.pop().split()) == len(everything.other_seed.evidence.client.text.split()) == 6
    assert everything.other_seed.holds
    assert everything.other_seed.evidence.client.text not in {
        everything.find(store, ONE).evidence.client.text for store in STORES
    }


@pytest.mark.storm
async def test_replicas_lost_by_chance_break_no_rule_on_any_store(tmp_path: Path) -> None:
    made_up = SCENARIOS.model_copy(update={"scenarios": make_up(SEED, 12)})
    played = await play_everywhere(STORES, made_up, SEED, find_envoy(), tmp_path)
    runs = [run for one in played for run in one.runs]
    broken = [(run.store, run.scenario.name, one) for run in runs for one in run.findings if not one.holds]
    assert broken == []
    assert len(runs) == 12 * len(STORES)
    assert len({run.evidence.operation["ending"] for run in runs}) > 1
