"""Plays a file of scenarios on one store after another, judges what was seen, and keeps it."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from envoy_ext import __version__
from envoy_ext.drills.scenarios.judge import judge
from envoy_ext.drills.scenarios.model import Scenario, Scenarios
from envoy_ext.drills.scenarios.normalise import normalise
from envoy_ext.drills.scenarios.play import play
from envoy_ext.drills.scenarios.report import Run, save_run
from envoy_ext.drills.scenarios.stage import Setting, Stage, run_stage
from envoy_ext.drills.scenarios.stores import open_store


@dataclass
class Played:
    """What came of all scenarios on one store."""

    store: str
    runs: list[Run] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Scenarios that could not be played here, and why."""


async def play_on(store: str, scenarios: Scenarios, seed: str, envoy: str, directory: Path) -> Played:
    """Play all on one stage, and save each run in `directory/STORE/SCENARIO`."""
    played = Played(store)
    pools = frozenset(scenario.pool for scenario in scenarios.scenarios)
    async with AsyncExitStack() as opened:
        work = Path(opened.enter_context(TemporaryDirectory(prefix="envoy-ext-scenarios-")))
        journal = await opened.enter_async_context(open_store(store, work))
        setting = Setting(store, journal, seed, scenarios.model_revision, pools)
        stage = await opened.enter_async_context(run_stage(envoy, setting, work))
        environment = {"envoy_ext": __version__, **await stage.describe()}
        for scenario in scenarios.scenarios:
            if scenario.pool == "apart" and stage.obstacle is not None:
                played.skipped[scenario.name] = stage.obstacle
                continue
            run = await _play_one(stage, scenario, environment)
            save_run(run, directory / store / scenario.name)
            played.runs.append(run)
    return played


async def _play_one(stage: Stage, scenario: Scenario, environment: dict[str, Any]) -> Run:
    evidence, setting = await play(stage, scenario), stage.setting
    findings = judge(scenario.expect, evidence, setting.model_revision)
    return Run(scenario, setting.store, setting.seed, setting.model_revision, evidence, findings, environment)


def find_differences(everything: Sequence[Played]) -> list[str]:
    """Where the evidence of a scenario is not the same on all stores, once it is normalised; in lines.

    Those of which nothing is expected are not compared: how far an answer had come may be chance.
    """
    first: dict[str, tuple[str, list[str]]] = {}
    found = []
    for played in everything:
        for run in [one for one in played.runs if one.scenario.expect is not None]:
            name, lines = run.scenario.name, _lay_out(run)
            store, others = first.setdefault(name, (played.store, lines))
            found += [
                f"{name}: {store} and {played.store} differ: {line}"
                for line in unified_diff(others, lines, n=0, lineterm="")
                if line[0] in "+-" and line[:3] not in ("+++", "---")
            ]
    return found


def _lay_out(run: Run) -> list[str]:
    return json.dumps(normalise(run.evidence), indent=1, sort_keys=True).splitlines()


async def play_everywhere(
    stores: Iterable[str], scenarios: Scenarios, seed: str, envoy: str, directory: Path
) -> list[Played]:
    """All scenarios on all stores, each store on a stage of its own; the stages play at once."""
    return await asyncio.gather(*(play_on(store, scenarios, seed, envoy, directory) for store in stores))


def choose(scenarios: Scenarios, names: Sequence[str]) -> Scenarios:
    """Those that are named; all of them where none is.

    Raises:
        ValueError: there is none of a name.
    """
    unknown = set(names) - {one.name for one in scenarios.scenarios}
    if unknown:
        known = ", ".join(one.name for one in scenarios.scenarios)
        raise ValueError(f"no scenario {', '.join(sorted(unknown))}; there are: {known}")
    chosen = tuple(one for one in scenarios.scenarios if not names or one.name in names)
    return scenarios.model_copy(update={"scenarios": chosen})


def tell(everything: Sequence[Played], differences: Sequence[str]) -> Iterable[str]:
    """What came of it, in lines for people."""
    for played in everything:
        yield played.store
        for run in played.runs:
            yield f"  {run.scenario.name:32} {_tell_run(run)}"
            yield from (f"    NOT SO   {one.rule}: {one.said}" for one in run.findings if not one.holds)
        for name, why in played.skipped.items():
            yield f"  {name:32} not played: {why}"
    yield from (f"NOT SO   {difference}" for difference in differences)


def _tell_run(run: Run) -> str:
    attempts = [f"{one['replica']} {one['outcome']}" for one in run.evidence.operation.get("attempts", ())]
    client = run.evidence.client
    answer = "whole" if client.whole else f"broken off, {client.error.get('code')}"
    return f"{answer}; {', '.join(attempts)}; {len(client.deltas)} deltas"


def is_good(scenario_runs: Sequence[Played], differences: Sequence[str]) -> bool:
    """Everything came as it must, and the same on all stores."""
    return not differences and all(run.holds for played in scenario_runs for run in played.runs)
