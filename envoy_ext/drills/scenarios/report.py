"""What a played scenario leaves on the disk, so that anybody can look again, or judge anew."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envoy_ext.drills.scenarios.evidence import Client, ClientEvent, EngineLine, Evidence, ToolLine
from envoy_ext.drills.scenarios.judge import Finding
from envoy_ext.drills.scenarios.model import Scenario
from envoy_ext.drills.scenarios.play import build_request


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario, played once."""

    scenario: Scenario
    store: str
    seed: str
    model_revision: str
    evidence: Evidence
    findings: tuple[Finding, ...]
    environment: Mapping[str, Any]

    @property
    def holds(self) -> bool:
        """Whether every rule does."""
        return all(finding.holds for finding in self.findings)


def build_input(scenario: Scenario, seed: str) -> dict[str, Any]:
    """All that was put in; the same for the same seed."""
    request = build_request(scenario, seed)
    sent = {"method": "POST", **dataclasses.asdict(request)}
    return {"scenario": scenario.model_dump(mode="json"), "request": sent}


def save_run(run: Run, directory: Path) -> None:
    """Write the files of a run into a directory, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    evidence = run.evidence
    (directory / "seed").write_text(f"{run.seed}\n")
    (directory / "model_revision").write_text(f"{run.model_revision}\n")
    _write(directory / "input.json", build_input(run.scenario, run.seed))
    _write(directory / "environment.json", {"store": run.store, **run.environment})
    client = dataclasses.asdict(evidence.client)
    events = client.pop("events")
    _write_lines(directory / "client.jsonl", [{"what": "answer", **client}, *events])
    _write_lines(directory / "engines.jsonl", map(_show_line, evidence.engines))
    _write_lines(directory / "tools.jsonl", map(dataclasses.asdict, evidence.tools))
    _write_lines(directory / "trace.jsonl", evidence.trace)
    _write(directory / "operation.json", evidence.operation)
    findings = [dataclasses.asdict(finding) for finding in run.findings]
    _write(directory / "verdict.json", {"holds": run.holds, "findings": findings})


def _show_line(line: EngineLine) -> dict[str, Any]:
    """Without what the line has nothing to say of."""
    return {name: value for name, value in dataclasses.asdict(line).items() if value}


def load_evidence(directory: Path) -> Evidence:
    """The evidence of a saved run."""
    (answer, *events) = _read_lines(directory / "client.jsonl")
    answer.pop("what")
    return Evidence(
        client=Client(**answer, events=tuple(ClientEvent(**event) for event in events)),
        engines=tuple(EngineLine(**line) for line in _read_lines(directory / "engines.jsonl")),
        operation=json.loads((directory / "operation.json").read_text()),
        trace=tuple(_read_lines(directory / "trace.jsonl")),
        tools=tuple(ToolLine(**line) for line in _read_lines(directory / "tools.jsonl")),
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def _write_lines(path: Path, values: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
