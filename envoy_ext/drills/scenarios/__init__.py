"""Scenarios: failures that a file declares, played on a real Envoy, with evidence that is kept and judged."""
