"""Who probably holds the beginning of a prompt: hashes only, bounded, and an unbroken run from the start."""

import hypothesis.strategies as st
from hypothesis import given

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.prefix_memory import BLOCK_BYTES, MAX_PROMPT_BLOCKS, PrefixMemory, hash_prefixes

A, B = ReplicaId("a"), ReplicaId("b")
SALT = b"a salt of this process"


def block(letter):
    return letter.encode() * BLOCK_BYTES


def prompt(letters):
    return b"".join(block(letter) for letter in letters)


def prefixes(letters, salt=SALT, model="llama"):
    return hash_prefixes(prompt(letters), salt, model)


def shares(memory, letters):
    return memory.compute_shares(prefixes(letters), [A, B])


def test_only_whole_blocks_count():
    assert hash_prefixes(b"", SALT, "llama") == ()
    assert hash_prefixes(b"x" * (BLOCK_BYTES - 1), SALT, "llama") == ()
    assert len(hash_prefixes(b"x" * (2 * BLOCK_BYTES + 1), SALT, "llama")) == 2


def test_a_hash_stands_for_everything_before_it():
    assert prefixes("xyz")[:2] == prefixes("xya")[:2]
    assert prefixes("xyz")[2] != prefixes("xya")[2]
    assert prefixes("xyz")[2] != prefixes("ayz")[2]


def test_salt_and_model_make_other_hashes():
    assert not set(prefixes("xy")) & set(prefixes("xy", salt=b"another"))
    assert not set(prefixes("xy")) & set(prefixes("xy", model="qwen"))


def test_a_long_prompt_is_hashed_up_to_a_bound():
    assert (
        len(hash_prefixes(b"x" * (BLOCK_BYTES * MAX_PROMPT_BLOCKS * 3), SALT, "llama")) == MAX_PROMPT_BLOCKS
    )


def test_the_share_is_the_run_from_the_start():
    memory = PrefixMemory()
    memory.remember(A, prefixes("wxyz"))
    memory.remember(B, prefixes("wx"))
    assert shares(memory, "wxyz") == {A: 1.0, B: 0.5}
    assert shares(memory, "wxqq") == {A: 0.5, B: 0.5}
    assert shares(memory, "qxyz") == {}
    assert memory.compute_shares((), [A, B]) == {}


def test_a_replica_that_restarted_holds_nothing():
    memory = PrefixMemory()
    memory.remember(A, prefixes("wx"))
    memory.forget(A)
    memory.forget(B)
    assert shares(memory, "wx") == {}
    assert len(memory) == 0


def test_the_least_recently_used_go_first_and_shared_beginnings_last():
    memory = PrefixMemory(max_replica_blocks=4)
    memory.remember(A, prefixes("sab"))
    memory.remember(A, prefixes("scd"))
    assert len(memory) == 4
    assert shares(memory, "scd") == {A: 1.0}
    assert shares(memory, "sab") == {A: 2 / 3}, "its last block went first"


def test_a_prompt_that_comes_again_is_used_again():
    memory = PrefixMemory(max_replica_blocks=4)
    memory.remember(A, prefixes("xy"))
    memory.remember(A, prefixes("ab"))
    memory.remember(A, prefixes("xy"))
    memory.remember(A, prefixes("cd"))
    assert shares(memory, "xy") == {A: 1.0}
    assert shares(memory, "ab") == {}


def test_no_part_of_a_prompt_is_kept():
    memory = PrefixMemory()
    memory.remember(A, hash_prefixes(b"the secret of the prompt " * 200, SALT, "llama"))
    assert b"secret" not in repr(vars(memory)).encode()
    assert all(len(prefix) == 8 for prefix in hash_prefixes(b"the secret" * 500, SALT, "llama"))


@given(
    st.lists(st.tuples(st.sampled_from([A, B]), st.text("xy", max_size=6)), max_size=30), st.integers(1, 8)
)
def test_the_memory_is_bounded_and_never_claims_what_a_replica_was_not_sent(sent, limit):
    memory = PrefixMemory(max_replica_blocks=limit)
    told: dict[ReplicaId, set[bytes]] = {A: set(), B: set()}
    for replica, letters in sent:
        memory.remember(replica, prefixes(letters))
        told[replica] |= set(prefixes(letters))
        assert len(memory) <= 2 * limit
        for held, share in shares(memory, "xyxy").items():
            count = round(share * 4)
            assert set(prefixes("xyxy")[:count]) <= told[held]


def test_all_replicas_together_have_a_bound_and_share_it():
    memory = PrefixMemory(max_replica_blocks=100, max_blocks=120)
    prompts = [bytes([number]) for number in range(100)]
    for _ in range(2):
        for name in "abcd":
            memory.remember(ReplicaId(name), prompts)
    assert len(memory) == 4 * 30
    assert memory.compute_shares(prompts[:30], [ReplicaId("a")]) == {"a": 1.0}, "the early blocks stay"
