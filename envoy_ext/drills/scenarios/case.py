"""What is judged."""

from dataclasses import dataclass

from envoy_ext.drills.scenarios.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Case:
    """The evidence of one played scenario, and what is known of the stage."""

    evidence: Evidence
    model_revision: str
