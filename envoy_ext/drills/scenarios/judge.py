"""Whether the evidence of a played scenario holds, rule by rule; no IO, no clock.

Each rule looks at one thing and can fail by itself. Some hold whatever was played (nobody publishes
beside another attempt); the others compare with what the scenario expects, where it expects anything.
"""

from dataclasses import dataclass
from typing import Final

from envoy_ext.drills.scenarios.always import ALWAYS
from envoy_ext.drills.scenarios.case import Case
from envoy_ext.drills.scenarios.evidence import Evidence
from envoy_ext.drills.scenarios.expected import EXPECTED
from envoy_ext.drills.scenarios.model import Expected

KNOWN: Final = "the journal knows the operation"
"""Without that nothing else can be said, and with it nothing needs to be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says."""

    rule: str
    holds: bool
    said: str = ""
    """What is wrong; empty when nothing is."""


def judge(expected: Expected | None, evidence: Evidence, model_revision: str) -> tuple[Finding, ...]:
    """What every rule says that there is."""
    if not evidence.operation:
        return (Finding(KNOWN, False, "the journal knows no operation of this request"),)
    case = Case(evidence, model_revision)
    said = {name: rule(case) for name, rule in ALWAYS.items()}
    if expected is not None:
        said |= {name: rule(case, expected) for name, rule in EXPECTED.items()}
    return tuple(Finding(name, not wrong, wrong) for name, wrong in said.items())
