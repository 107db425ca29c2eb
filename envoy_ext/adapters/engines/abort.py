"""Engines that can be asked to end one request, and how it is named for that.

Only what names our request and no other is used. SGLang's `/abort_request` takes a `rid`, which a request
header may set (`x-override-rid`, python/sglang/srt/entrypoints/request_headers.py: `/generate` since 0.5.15,
chat completions since 0.5.18, both with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1 alone). Without it the
header is not read, the name is known to nobody, and the call ends nothing. Its scheduler ends every request
whose rid *begins* with the one given, so a rid is never empty, and all of ours are of one length;
`abort_all` ends everybody's and is never sent.

Not used: vLLM's `/abort_requests`. It exists with `--tokens-only` and in development mode alone
(vllm/entrypoints/scale_out, rl/online, 0.32), its ids are made from `x-request-id`, which is the client's to
choose and may stand on requests of others, and an empty list means all. TGI, Triton's HTTP server,
trtllm-serve and llama.cpp have no such call: a closed connection is what they are told.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from envoy_ext.domain.ids import AttemptId


@dataclass(frozen=True, slots=True)
class AbortCall:
    """How one engine is asked."""

    name_header: str
    """The request header by which the engine is told a request's name."""
    path: str

    def build_body(self, attempt_id: AttemptId) -> dict[str, str]:
        """What is posted to end an attempt."""
        return {"rid": name_request(attempt_id)}


SGLANG_ABORT: Final = AbortCall("x-override-rid", "/abort_request")


def name_request(attempt_id: AttemptId) -> str:
    """The name of an attempt at its engine. SGLang's answers show it to the client as their `id`, so it
    tells nothing of the attempt's own, which a lease is asked by."""
    return sha256(f"request of {attempt_id}".encode()).hexdigest()[:32]
