"""The file of scenarios, the request that follows from a seed, and the files that a run leaves."""

import json
import re
from pathlib import Path

import pytest

from envoy_ext.domain.errors import ConfigError
from envoy_ext.drills.scenarios.evidence import ToolLine
from envoy_ext.drills.scenarios.judge import judge
from envoy_ext.drills.scenarios.made_up import make_up
from envoy_ext.drills.scenarios.model import FAILURE_POLICY, Scenario, read_scenarios
from envoy_ext.drills.scenarios.play import build_request
from envoy_ext.drills.scenarios.report import Run, build_input, load_evidence, save_run
from envoy_ext.drills.scenarios.runner import choose
from tests.support.scenario_evidence import REVISION, build_replayed

DOC = Path(__file__).parent.parent.parent / "docs" / "scenarios.md"
SCENARIO = Scenario(name="example", says="Something fails.", fault="hang", expect=build_replayed()[0])


def test_the_failure_policy_is_a_file_of_scenarios() -> None:
    names = [scenario.name for scenario in read_scenarios().scenarios]
    assert names == [
        "lost_before_the_first_byte",
        "computed_but_unsent",
        "lost_after_the_first_delta",
        "network_cut",
        "lost_after_a_tool_call",
        "lost_in_a_tool_call",
    ]


def test_the_scenario_that_the_docs_show_is_one_of_them(tmp_path: Path) -> None:
    shown = re.search(r"```yaml\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert shown is not None
    (tmp_path / "shown.yaml").write_text(shown[1])
    (scenario,) = read_scenarios(tmp_path / "shown.yaml").scenarios
    assert scenario in read_scenarios().scenarios


def test_the_docs_name_every_scenario() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:when|by) ", DOC.read_text(), re.MULTILINE)
    assert rows == [scenario.name for scenario in read_scenarios().scenarios]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "answer: whole",
            "answer: half",
            "[0].expect.answer: must be whole, interrupted or refused",
        ),
        ("die_before_headers:kill", "die_soon", "fault: unknown fault 'die_soon'"),
        (
            "{client_has: 3}",
            "{client_has: 3, engine: start}",
            "name one moment: client_has, engine or ",
        ),
        ("{client_has: 3}", "{}", "name one moment: client_has, engine or "),
        ("computed_but_unsent", "network_cut", "each needs a name of its own"),
        ("    says: The replica is killed when it has", "    say: x\n    says: It has", "say: unknown key"),
        ("outcome: replica_died, computed: 0", "outcome: bad, computed: 0", "attempts[0].outcome: "),
        ("model_revision: sim-weights-3", "model_revision: ''", "model_revision: "),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = FAILURE_POLICY.read_text()
    assert old in text
    (tmp_path / "mine.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_scenarios(tmp_path / "mine.yaml")
    assert any(line.startswith("mine.yaml: ") and said in line for line in caught.value.mistakes)


def test_a_scenario_that_is_not_there_is_no_run_of_nothing() -> None:
    scenarios = read_scenarios()
    assert [one.name for one in choose(scenarios, ["network_cut"]).scenarios] == ["network_cut"]
    assert choose(scenarios, []) == scenarios
    with pytest.raises(ValueError, match=r"no scenario network_cat; there are: .*network_cut"):
        choose(scenarios, ["network_cat"])


def test_the_input_follows_from_the_seed_and_the_scenario_alone() -> None:
    first = json.dumps(build_input(SCENARIO, "7"))
    assert json.dumps(build_input(SCENARIO, "7")) == first
    request, other = build_request(SCENARIO, "7"), build_request(SCENARIO, "8")
    assert request.body["messages"] != other.body["messages"]
    assert request.request_id != other.request_id
    elsewhere = build_request(SCENARIO.model_copy(update={"name": "other"}), "7")
    assert request.request_id != elsewhere.request_id


def test_scenarios_by_chance_follow_from_their_seed_and_lose_replicas_in_every_way() -> None:
    made = make_up("7", 200)
    assert make_up("7", 200) == made
    assert make_up("8", 200) != made
    assert len({scenario.name for scenario in made}) == 200
    assert all(scenario.fault or scenario.acts for scenario in made)
    assert all(scenario.expect is None and scenario.pool == "beside" for scenario in made)
    moments = {
        moment for one in made for act in one.acts for moment in act.when.model_dump(exclude_none=True)
    }
    assert moments == {"client_has", "engine", "tools_acted"}
    words = {word for one in made for word in re.findall(r"[a-z_]+", one.fault)}
    assert {"die_before_headers", "die_after_role", "die_mid_event", "status", "kill", "rst", "fin"} <= words
    assert {one.request.tools for one in made} == {(), ("pay",), ("pay", "mail")}


def test_a_key_is_sent_where_the_scenario_wants_one() -> None:
    keyed = SCENARIO.model_copy(update={"request": SCENARIO.request.model_copy(update={"key": True})})
    assert "idempotency-key" not in build_request(SCENARIO, "7").headers
    assert (
        build_request(keyed, "7").headers["idempotency-key"]
        != build_request(keyed, "8").headers["idempotency-key"]
    )


def test_a_saved_run_can_be_judged_again(tmp_path: Path) -> None:
    expected, evidence = build_replayed()
    evidence = type(evidence)(
        client=evidence.client,
        engines=evidence.engines,
        operation=evidence.operation,
        trace=evidence.trace,
        tools=(ToolLine(1.0, "pay", "k", 1),),
    )
    findings = judge(expected, evidence, REVISION)
    save_run(Run(SCENARIO, "memory", "7", REVISION, evidence, findings, {"envoy": "1.40"}), tmp_path / "run")
    assert load_evidence(tmp_path / "run") == evidence
    assert judge(expected, load_evidence(tmp_path / "run"), REVISION) == findings
    assert (tmp_path / "run" / "seed").read_text() == "7\n"
    assert (tmp_path / "run" / "model_revision").read_text() == f"{REVISION}\n"
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["holds"] is False  # a tool acted, and none was expected to
    assert [one["rule"] for one in verdict["findings"] if not one["holds"]] == [
        "the tools did what was expected"
    ]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment == {"store": "memory", "envoy": "1.40"}
    assert json.loads((tmp_path / "run" / "input.json").read_text()) == json.loads(
        json.dumps(build_input(SCENARIO, "7"))
    )
