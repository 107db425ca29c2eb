"""A state-of-the-world client and a delta client end with the same resources, those that are offered,
under any interleaving of publications, requests, refusals, lost interest and reconnects. On the way
no client waits for a cluster to warm that never does, none is asked the same thing for ever, and
while nothing bad is offered no route points at a cluster that its client does not have.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.snapshot import Snapshot, build_snapshot
from tests.xds.builders import BAD, MESSAGES, cluster, listener, pool, route
from tests.xds.peer import DeltaPeer, Peer, SotwPeer

POOLS = "abc"
NUMBERS = st.sampled_from([1, 2, 3, 4, BAD, BAD + 1])
GOOD = st.integers(1, 9)


class Machine(RuleBasedStateMachine):
    @initialize(data=st.data(), refuses=st.booleans())
    def begin(self, data, refuses):
        self.sotw, self.delta = SotwPeer(refuses=refuses), DeltaPeer(refuses=refuses)
        self.refuses = refuses
        self.numbers: dict[Kind, dict[str, int]] = {kind: {} for kind in Kind}
        self.routed: list[str] = []
        self.bad_was_offered = False
        self.unsure: set[Peer] = set()  # reconnected: what it held may have been taken away in the meantime
        self.offered: Snapshot | None = None
        for peer in self.peers:
            peer.start([Kind.CDS, Kind.LDS])

    @property
    def peers(self) -> tuple[Peer, Peer]:
        return self.sotw, self.delta

    def offer_other(self, data, numbers) -> None:
        """Other pools, other listeners, all of it anew."""
        pools = sorted(data.draw(st.sets(st.sampled_from(POOLS))))
        listeners = sorted(data.draw(st.sets(st.sampled_from(["in", "out"]))))
        self.routed = sorted(data.draw(st.sets(st.sampled_from(pools)))) if pools else []
        for kind, names in zip(Kind, (pools, pools, listeners, listeners), strict=True):
            self.numbers[kind] = {name: data.draw(numbers) for name in names}
        self.offer()

    def offer(self) -> None:
        clusters, endpoints, listeners, routes = (self.numbers[kind].items() for kind in Kind)
        self.offered = build_snapshot(
            {
                Kind.CDS: [cluster(name, number) for name, number in clusters],
                Kind.EDS: [pool(name, *([number] if number > 1 else [])) for name, number in endpoints],
                Kind.LDS: [listener(name, f"to-{name}", number) for name, number in listeners],
                Kind.RDS: [route(f"to-{name}", self.routed, number) for name, number in routes],
            }
        )
        assert self.offered.find_inconsistencies() == ()
        self.bad_was_offered = self.bad_was_offered or self.is_bad
        for peer in self.peers:
            peer.publish(self.offered)

    @property
    def is_bad(self) -> bool:
        return self.refuses and any(n >= BAD for found in self.numbers.values() for n in found.values())

    @rule(data=st.data())
    def publishes(self, data):
        self.offer_other(data, NUMBERS)

    @rule(data=st.data(), kind=st.sampled_from(Kind), number=NUMBERS)
    def one_thing_changes(self, data, kind, number):
        if self.numbers[kind]:
            self.numbers[kind][data.draw(st.sampled_from(sorted(self.numbers[kind])))] = number
            self.offer()

    @precondition(lambda self: any(self.numbers[Kind.CDS]))
    @rule(data=st.data())
    def a_pool_goes(self, data):
        name = data.draw(st.sampled_from(sorted(self.numbers[Kind.CDS])))
        self.routed = [one for one in self.routed if one != name]
        for kind in (Kind.CDS, Kind.EDS):
            del self.numbers[kind][name]
        for kind in (Kind.LDS, Kind.RDS):
            self.numbers[kind] = {one: number % BAD + 1 for one, number in self.numbers[kind].items()}
        self.offer()

    @precondition(lambda self: self.offered is not None)
    @rule()
    def publishes_the_same_again(self):
        for peer in self.peers:
            assert peer.publish(self.offered) == []

    @rule(data=st.data(), times=st.integers(1, 6))
    def messages_get_through(self, data, times):
        for _ in range(times):
            ways = [
                way
                for peer in self.peers
                for queue, way in ((peer.requests, peer.hear), (peer.responses, peer.answer))
                if queue
            ]
            if not ways:
                return
            ways[data.draw(st.integers(0, len(ways) - 1))]()
            self.no_route_leads_nowhere()

    @rule(name=st.sampled_from(["pool_a", "pool_x"]))
    def asks_for_one_more(self, name):
        for peer in self.peers:
            peer.watch(name)

    @rule(name=st.sampled_from(["pool_a", "pool_x"]))
    def loses_interest(self, name):
        for peer in self.peers:
            peer.unwatch(name)

    @rule(data=st.data(), which=st.integers(0, 1))
    def reconnects(self, data, which):
        peer = self.peers[which]
        peer.connect(self.offered)
        self.unsure.add(peer)
        kinds = [Kind.CDS, Kind.LDS] + [kind for kind in (Kind.EDS, Kind.RDS) if peer.names[kind]]
        peer.start(data.draw(st.permutations(kinds)))

    @rule()
    def falls_silent(self):
        for peer in self.peers:
            messages = 0
            while peer.step():
                messages += 1
                assert messages < 300, "they never stop"
                self.no_route_leads_nowhere()
            assert not peer.warming, "a cluster that never gets warm"
        if self.offered is None or self.is_bad:
            return
        self.unsure.clear()
        self.assert_all_have_what_is_offered()

    def assert_all_have_what_is_offered(self):
        for kind in Kind:
            prefix = {Kind.CDS: "pool_", Kind.EDS: "pool_", Kind.LDS: "", Kind.RDS: "to-"}[kind]
            offered = {prefix + name: number for name, number in self.numbers[kind].items()}
            if kind is Kind.EDS:
                offered = {name: number for name, number in offered.items() if number > 1}
            assert self.sotw.numbers(kind) == offered
            assert self.delta.numbers(kind) == offered
            assert self.sotw.names[kind] == self.delta.names[kind]

    @invariant()
    def no_route_leads_nowhere(self):
        if self.bad_was_offered:
            return
        for peer in self.peers:
            if peer in self.unsure:
                continue
            for value in peer.held[Kind.RDS].values():
                for host in MESSAGES[Kind.RDS].FromString(value).virtual_hosts:
                    name = host.routes[0].route.cluster
                    assert name in peer.held[Kind.CDS]

    @rule(data=st.data())
    def all_ends_well(self, data):
        """At any moment one good publication brings both to the same end."""
        self.offer_other(data, GOOD)
        self.falls_silent()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
