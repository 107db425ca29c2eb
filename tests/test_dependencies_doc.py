"""docs/dependencies.md says of every direct dependency why it is there, and of no other."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=]", requirement, maxsplit=1)[0] for requirement in requirements}


def read_rows(section: str) -> set[str]:
    text = (ROOT / "docs" / "dependencies.md").read_text().split(f"## {section}", 1)[1].split("\n## ", 1)[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_dependency_has_its_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert read_rows("At run time") == read_names(project["dependencies"])
    for_tests = read_names(project["optional-dependencies"]["dev"])
    types = {name for name in for_tests if name.startswith("types-")}
    assert read_rows("For development and tests") == (for_tests - types) | {"types-*"}
