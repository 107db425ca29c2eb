"""All that one run has found, as it is kept: raw samples, from which every figure can be computed again."""

import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from bench.performance import many, memory
from bench.performance.figures import Spoiled
from bench.performance.loads import Sample
from bench.performance.many import Seen
from bench.performance.memory import Held
from bench.performance.rounds import Round
from bench.performance.targets import IDLE, MANY
from bench.performance.verdict import Line, judge


@dataclass(slots=True)
class Results:
    """One run."""

    about: dict[str, Any]
    """The machine, the commit, when, and what else was asked of it."""
    rounds: list[Round] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    tried: dict[str, list[Seen]] = field(default_factory=dict)
    """What was carried and what was not, by gateway."""
    most: dict[str, int] = field(default_factory=dict)
    many: list[Seen] = field(default_factory=list)
    """The most that was carried, again."""
    slow: list[Seen] = field(default_factory=list)
    """1,000 streams that together have as many chunks."""
    failed: dict[str, str] = field(default_factory=dict)
    """What could not be measured, by the target's key, and why."""

    def judge(self) -> list[Line]:
        """Every line of the targets, from the samples."""
        return judge(
            self.rounds,
            {
                IDLE.key: self._read(IDLE.key, lambda: memory.read_values(self.held)),
                MANY.key: self._read(MANY.key, lambda: many.read_values(self.many)),
            },
        )

    def _read(self, key: str, read: Any) -> "list[float] | Spoiled":
        if key in self.failed:
            return Spoiled(self.failed[key])
        try:
            values: list[float] = read()
        except Spoiled as why:
            return why
        return values

    def list_samples(self) -> list[Sample]:
        """All of the rounds."""
        return [one for made in self.rounds for by_gateway in made.values() for one in by_gateway.values()]

    def as_json(self) -> dict[str, Any]:
        """To be kept."""
        kept = asdict(self)
        kept["lines"] = {
            line.target.key: {
                "word": line.word,
                "sure": line.sure,
                "why": line.why,
                "noise": list(line.noise),
            }
            | ({} if line.figure is None else asdict(line.figure))
            for line in self.judge()
        }
        return kept

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """What was kept; its words are not taken over but found again."""
        return cls(
            about=kept["about"],
            rounds=[
                {
                    load: {name: Sample(**one) for name, one in by_gateway.items()}
                    for load, by_gateway in made.items()
                }
                for made in kept["rounds"]
            ],
            held=[Held(**one) for one in kept["held"]],
            tried={name: [_read_seen(one) for one in tried] for name, tried in kept["tried"].items()},
            most=kept["most"],
            many=[_read_seen(one) for one in kept["many"]],
            slow=[_read_seen(one) for one in kept["slow"]],
            failed=kept["failed"],
        )


def _read_seen(kept: dict[str, Any]) -> Seen:
    return Seen(**{**kept, "sample": Sample(**kept["sample"])})


def write(results: Results, path: Path) -> None:
    """Keep it, with numbers as short as they mean something."""
    path.parent.mkdir(exist_ok=True)
    kept = _shorten(results.as_json())
    lines = []
    for name, value in kept.items():  # a line for each round, and for each part that is no list of rounds
        text = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) else json.dumps(value)
        lines.append(f"{json.dumps(name)}: " + (f"[{text}]" if isinstance(value, list) else text))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> Results:
    """What was kept."""
    return Results.from_json(json.loads(path.read_text()))


def _shorten(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _shorten(one) for key, one in value.items()}
    return [_shorten(one) for one in value] if isinstance(value, list) else value


def describe_machine(envoy: str) -> dict[str, Any]:
    """What it runs on."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    asked = subprocess.run([envoy, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"/(\d+\.\d+\.\d+)/", asked)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "envoy_ext"], capture_output=True, text=True
    ).stdout
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "cpu": model[1] if model else platform.machine(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "envoy": version[1] if version else "unknown",
        "commit": commit.stdout.strip() + (" and changes" if changed else ""),
        "load_before": os.getloadavg()[0],
    }
