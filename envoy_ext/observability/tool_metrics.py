"""The metrics of tool calls. Tools are named in the configuration; whatever leads to none counts under ""."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter

from envoy_ext.domain.notes import ToolCallDecided, ToolCallEnded
from envoy_ext.domain.tool_calls import CallState
from envoy_ext.domain.tool_errors import CallOutcome


class ToolMetrics:
    """The families, in the registry given; no series without tools."""

    def __init__(self, registry: CollectorRegistry, tools: Iterable[str]) -> None:
        self.calls = Counter(
            "envoy_ext_tool_calls_total",
            "Requests to tools, by what was decided about them.",
            ["tool", "outcome"],
            registry=registry,
        )
        self.ends = Counter(
            "envoy_ext_tool_call_ends_total",
            "Calls that were let out to a tool, by what is known of their end.",
            ["tool", "state"],
            registry=registry,
        )
        self.unrecorded = Counter(
            "envoy_ext_tool_calls_unrecorded_total",
            "Ends of calls that the store could not take: the ledger calls them begun.",
            ["tool"],
            registry=registry,
        )
        for tool in tools:
            self.unrecorded.labels(tool)
            for outcome in CallOutcome:
                self.calls.labels(tool, outcome)
            for state in CallState:
                if state is not CallState.BEGUN:
                    self.ends.labels(tool, state)

    def note_decided(self, note: ToolCallDecided) -> None:
        """It was decided about a request."""
        self.calls.labels(note.tool or "", note.outcome).inc()

    def note_ended(self, note: ToolCallEnded) -> None:
        """A call that was let out has an end."""
        self.ends.labels(note.tool, note.state).inc()
        if not note.recorded:
            self.unrecorded.labels(note.tool).inc()
