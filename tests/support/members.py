"""Replicas as a source of discovery lists them, and a fleet that is told of them."""

from collections.abc import Iterable

from envoy_ext.domain.discovery import Member, MemberChanges
from envoy_ext.domain.fleet_events import Scraped
from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptLetGo, AttemptPlaced
from envoy_ext.domain.sample import Sample
from envoy_ext.services.fleet import Fleet

POOL = PoolName("chat")


def member(name: str, number: int = 1, **facts: object) -> Member:
    """One at 10.0.0.`number`:8000."""
    address = f"10.0.0.{number}:8000"
    known = {"url": f"http://{address}", "addresses": (address,), **facts}
    return Member(ReplicaId(name), **known)  # type: ignore[arg-type]


def list_members(fleet: Fleet, pool: PoolName, names: str | tuple[str, ...]) -> None:
    """Let discovery list these, at 10.0.0.1:8000 and so on, and take the first picture."""
    members = tuple(member(name, number) for number, name in enumerate(names, 1))
    fleet.change_members(pool, MemberChanges(added=members))
    fleet.tick()


def place(fleet: Fleet, attempt_id: AttemptId, replica: ReplicaId, pool: PoolName = POOL) -> None:
    """An attempt of ours is let go, and it is known where it runs; repeating this changes nothing."""
    fleet.streams.note(AttemptLetGo(attempt_id, pool))
    fleet.streams.note(AttemptPlaced(attempt_id, pool, replica))


def show_idle(fleet: Fleet, replicas: Iterable[str], now: float) -> None:
    """Each engine gives a page, asked for at this moment, that shows no request."""
    for replica in replicas:
        fleet.receive(ReplicaId(replica), Scraped(Sample(at=now, running=0, waiting=0), now))
