"""Short words for the tests of the inspector."""

from pathlib import Path

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.inspection import BodyKind, Inspector, Verdict
from envoy_ext.domain.outcomes import Fault

DATA = Path(__file__).parent.parent / "data"
LIMIT = 1 << 20

CHAT, COMPLETIONS, RESPONSES = ApiFamily.CHAT, ApiFamily.COMPLETIONS, ApiFamily.RESPONSES
MESSAGES, TGI, OTHER = ApiFamily.MESSAGES, ApiFamily.TGI, ApiFamily.OTHER
EMBEDDINGS = ApiFamily.EMBEDDINGS

COMPLETE, TRUNCATED, ABORTED = Verdict.COMPLETE, Verdict.TRUNCATED, Verdict.ABORTED
ERRORED, NO_FINISH, UNKNOWN = Verdict.ERRORED, Verdict.NO_FINISH, Verdict.UNKNOWN
FAILED, OVERLOADED, CLIENT = Fault.ENGINE_FAILED, Fault.ENGINE_OVERLOADED, Fault.CLIENT


def load(name):
    """A recorded stream."""
    return (DATA / "sse" / name).read_bytes()


def watch(body, family=CHAT, kind=BodyKind.SSE, choices=1, limit=LIMIT):
    """An inspector that has been fed a body, or the chunks of one."""
    inspector = Inspector(family, kind, limit, choices=choices)
    for chunk in [body] if isinstance(body, bytes) else body:
        inspector.feed(chunk)
    return inspector


def observe(inspector):
    """All that an inspector says."""
    return {
        "verdict": inspector.verdict_at_eof(),
        "deltas": inspector.deltas,
        "output_tokens": inspector.output_tokens,
        "first_delta_seen": inspector.first_delta_seen,
        "error": inspector.error,
        "error_before_delta": inspector.error_before_delta,
        "model_revision": inspector.model_revision,
        "malformed_events": inspector.malformed_events,
        "done_marker": inspector.done_marker,
        "watching": inspector.watching,
        "pending": inspector.pending,
        "boundary": inspector.boundary,
        "received": inspector.received,
    }
