"""What is known of each engine: how its metrics read, and where its pages are.

The parsers are pure: a page in, a `Sample` out, with None for whatever the page does not tell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from envoy_ext.adapters.engines.abort import SGLANG_ABORT, AbortCall, name_request
from envoy_ext.adapters.engines.dcgm import parse_dcgm
from envoy_ext.adapters.engines.exposition import NotMetrics, drop_unfinished_line
from envoy_ext.adapters.engines.generic import parse_generic
from envoy_ext.adapters.engines.llamacpp import parse_llamacpp
from envoy_ext.adapters.engines.refusal import read_decline, read_refusal
from envoy_ext.adapters.engines.sglang import parse_sglang
from envoy_ext.adapters.engines.tgi import parse_tgi
from envoy_ext.adapters.engines.triton import parse_triton
from envoy_ext.adapters.engines.trtllm import parse_trtllm
from envoy_ext.adapters.engines.vllm import parse_vllm
from envoy_ext.domain.sample import Sample

__all__ = [
    "ENGINES",
    "AbortCall",
    "Engine",
    "NotMetrics",
    "drop_unfinished_line",
    "get_engine",
    "name_request",
    "parse_dcgm",
    "parse_generic",
    "parse_llamacpp",
    "parse_sglang",
    "parse_tgi",
    "parse_triton",
    "parse_trtllm",
    "parse_vllm",
    "read_decline",
    "read_refusal",
]


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of engine. Paths are those of its server's defaults."""

    name: str
    parse: Callable[[bytes, float], Sample]
    metrics_path: str = "/metrics"
    metrics_port: int | None = None
    """None: the port that serves requests."""
    health_path: str = "/health"
    health_beside_metrics: bool = False
    """True: its server can outlive its engine, and its pages show the last figures meanwhile; its health page
    says 503 then. vLLM's does for some five seconds, with VLLM_KEEP_ALIVE_ON_ENGINE_DEATH for good."""
    keep_alive: bool = True
    """False: its server gives each open connection a thread, of few, and a connection kept for the next look
    would hold one for good (llama.cpp's cpp-httplib)."""
    abort: AbortCall | None = None
    """Its call to end one request by a name that we gave it; None where it has none."""

    def build_metrics_url(self, url: str) -> str:
        """Where a replica at `url` has its metrics, when its config does not say."""
        return _with_path(url, self.metrics_path, self.metrics_port)

    def build_health_url(self, url: str) -> str:
        """Where a replica at `url` says that it is alive."""
        return _with_path(url, self.health_path, None)


ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine("vllm", parse_vllm, health_beside_metrics=True),
        Engine("sglang", parse_sglang, abort=SGLANG_ABORT),
        Engine("llamacpp", parse_llamacpp, keep_alive=False),
        Engine("tgi", parse_tgi),
        # Triton's defaults: 8000 HTTP, 8001 gRPC, 8002 metrics.
        Engine("triton", parse_triton, metrics_port=8002, health_path="/v2/health/ready"),
        # `/metrics` of trtllm-serve is JSON.
        Engine("trtllm", parse_trtllm, metrics_path="/prometheus/metrics"),
        Engine("generic", parse_generic, keep_alive=False),
    )
}


def get_engine(name: str) -> Engine:
    """The engine of that name in the config."""
    try:
        return ENGINES[name]
    except KeyError:
        raise ValueError(f"no engine is called {name!r}; there are {', '.join(ENGINES)}") from None


def _with_path(url: str, path: str, port: int | None) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    netloc = parts.netloc if port is None else f"{host}:{port}"
    return urlunsplit((parts.scheme, netloc, path, "", ""))
