"""Which replica probably holds the beginning of a prompt in its cache: a hint, never a promise.

A prompt is cut into blocks; each block's hash covers everything before it, so one hash stands for a
whole prefix. What a replica was sent is remembered as hashes alone, salted, so that the memory can
neither be read nor be searched for known texts. It is bounded: the least recently used go first, as
they do in the engines' caches.

Engines cut by tokens (16 in vLLM, 64 in SGLang's radix pages and up); bytes of text are close enough
for a hint. A replica that restarted has an empty cache: forget it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

from envoy_ext.domain.ids import ReplicaId

BLOCK_BYTES: Final = 1024
"""About 256 tokens: shorter common beginnings save too little to look for."""
MAX_PROMPT_BLOCKS: Final = 128
"""32,000 tokens or so: longer prompts are not replayed by default."""
MAX_REPLICA_BLOCKS: Final = 8192
"""About a megabyte for each replica, and more tokens than most caches hold."""
MAX_BLOCKS: Final = 262_144
"""Of all replicas together, some 40 MB: in a fleet of hundreds each gets less."""
_HASH_BYTES: Final = 8


def hash_prefixes(prompt: bytes, salt: bytes, model: str) -> tuple[bytes, ...]:
    """The hash of each whole-block prefix of a prompt, shortest first. `salt` is secret and at most 64 bytes.

    The last, partial block counts for nothing: it ends differently next time.
    """
    blocks = min(len(prompt) // BLOCK_BYTES, MAX_PROMPT_BLOCKS)
    state = blake2b(model.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES, key=salt)
    hashes = []
    for start in range(0, blocks * BLOCK_BYTES, BLOCK_BYTES):
        state.update(prompt[start : start + BLOCK_BYTES])
        hashes.append(state.copy().digest())
    return tuple(hashes)


class PrefixMemory:
    """The prefixes each replica was sent of late. One event loop feeds it."""

    def __init__(self, max_replica_blocks: int = MAX_REPLICA_BLOCKS, max_blocks: int = MAX_BLOCKS) -> None:
        self._limit = max_replica_blocks
        self._total = max_blocks
        self._blocks: dict[ReplicaId, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._blocks.values())

    def remember(self, replica: ReplicaId, prefixes: Sequence[bytes]) -> None:
        """A prompt with these prefixes was computed there."""
        blocks = self._blocks.setdefault(replica, OrderedDict())
        # The longest first: of a prefix's blocks the early ones are of use for more prompts, and
        # should be the last to go.
        for prefix in reversed(prefixes):
            blocks[prefix] = None
            blocks.move_to_end(prefix)
        limit = min(self._limit, self._total // len(self._blocks))
        while len(blocks) > limit:
            blocks.popitem(last=False)

    def forget(self, replica: ReplicaId) -> None:
        """Its cache is empty: it restarted, slept or has gone."""
        self._blocks.pop(replica, None)

    def compute_shares(
        self, prefixes: Sequence[bytes], replicas: Iterable[ReplicaId]
    ) -> dict[ReplicaId, float]:
        """How much of a prompt's blocks each replica probably holds, 0 to 1; only those with any."""
        if not prefixes:
            return {}
        shares = ((replica, self._count_held(replica, prefixes) / len(prefixes)) for replica in replicas)
        return {replica: share for replica, share in shares if share}

    def _count_held(self, replica: ReplicaId, prefixes: Sequence[bytes]) -> int:
        """The unbroken run from the start: an engine reuses no block behind a missing one."""
        blocks: Mapping[bytes, None] = self._blocks.get(replica, {})
        return next((held for held, prefix in enumerate(prefixes) if prefix not in blocks), len(prefixes))
