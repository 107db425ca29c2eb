"""From one list to the next: who came, who went, who is another one.

The invariant: applied to the first list, the changes give the second.
"""

from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.discovery import Member, MemberChanges, Standing, compute_changes
from tests.support.members import member

MEMBERS = st.builds(
    member,
    name=st.sampled_from("abcd"),
    number=st.integers(1, 3),
    standing=st.sampled_from(Standing),
    identity=st.sampled_from(["", "uid-1", "uid-2"]),
    zone=st.sampled_from([None, "z1"]),
)
LISTS = st.lists(MEMBERS, unique_by=lambda one: one.replica)


def apply(before: list[Member], changes: MemberChanges) -> set[Member]:
    known = {one.replica: one for one in before}
    for replica in changes.removed:
        del known[replica]
    for one in (*changes.replaced, *changes.changed):
        assert one.replica in known
        known[one.replica] = one
    for one in changes.added:
        assert one.replica not in known
        known[one.replica] = one
    return set(known.values())


@given(LISTS, LISTS)
def test_the_changes_make_the_second_list_of_the_first(before: list[Member], after: list[Member]) -> None:
    assert apply(before, compute_changes(before, after)) == set(after)


@given(LISTS, st.randoms())
def test_the_same_list_in_any_order_is_no_change(members: list[Member], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(members, len(members))
    assert not compute_changes(members, shuffled)


def test_another_identity_is_another_one_and_another_place_is_not() -> None:
    before = [member("a", 1, identity="uid-1"), member("b", 2), member("c", 3), member("d", 4)]
    replaced, moved = member("a", 1, identity="uid-2"), member("b", 5)
    changes = compute_changes(before, [replaced, moved, before[2], member("e", 6)])
    assert changes == MemberChanges(
        added=(member("e", 6),), replaced=(replaced,), changed=(moved,), removed=(before[3].replica,)
    )
