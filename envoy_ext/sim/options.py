"""How one simulated engine behaves."""

import re
from dataclasses import dataclass

# The name stands in token text (`name.generation.index`) and selects the replica in a fault
# (`name:fault`), so it may hold no character that means something in either.
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The behaviour of one engine; every request may still ask for a fault."""

    port: int = 0
    """0 takes a free port; `SimEngine.port` says which."""
    host: str = "127.0.0.1"
    name: str = "a"
    """The replica's name: in its token text, in `x-sim-replica`, and in fault selectors."""
    models: tuple[str, ...] = ("sim",)
    """The names it answers to; the first one is the metrics' `model_name`, as vLLM does it."""
    prefill_s: float = 0.05
    prefill_s_per_1k_tokens: float = 0.0
    token_s: float = 0.02
    """What a token takes that is computed alone."""
    token_s_a_neighbour: float = 0.0
    """What every other running request adds to that. A step of decoding reads the weights once for the whole
    batch, and the cache of each request in it (Pope et al., "Efficiently Scaling Transformer Inference",
    2022, section 2): a fuller engine gives more tokens a second in all, and each request fewer."""
    tokens: int = 16
    """Length of an answer; the request's own limit can only shorten it."""
    max_running: int = 32
    """Requests computed at once; the rest waits in order of arrival."""
    kv_capacity_tokens: int = 65_536
    """Prompt and answer tokens of running requests that make `kv_cache_usage_perc` 1."""
    first_generation: int = 1
    """Number of the first generation. A restarted replica that starts higher than its former self
    writes text that cannot be mistaken for the text from before."""
    notice_s: float = 0.0
    """How long it computes on for a client that has gone: SGLang looks for that every 2 to 4 s."""
    root: str = ""
    """The path or hub name it was started with, as its list of models tells it; "" is its first name."""
    cache_dtype: str = "auto"
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters; requests may name them as a model."""
    seed: str = ""
    """What its text is drawn from, together with the request's body: replicas of one seed give one answer, as
    replicas do that decode greedily. "" writes text that names the replica, the generation and the token."""
    revision: str = ""
    """Of its weights: the `system_fingerprint` of its answers; "" names the replica."""
    event_log: str = ""
    """The file that its `event_log` is appended to; "" keeps none."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: letters, digits, '_' and '-' only")
        if not self.models:
            raise ValueError("models: at least one")
        for field in ("prefill_s", "prefill_s_per_1k_tokens", "token_s", "token_s_a_neighbour", "notice_s"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}: not below 0")
        for field in ("tokens", "max_running", "kv_capacity_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: at least 1")
