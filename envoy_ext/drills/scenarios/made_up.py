"""Scenarios by chance: a lost replica, or two, at any moment, with tools or without; from a seed.

Nothing is expected of them but what holds whatever is played.
"""

import random

from envoy_ext.drills.scenarios.model import Act, Request, Scenario, Tool, When

TOKENS = 6
_HOW = ("fin", "rst", "kill")
_TOOLS: tuple[tuple[Tool, ...], ...] = ((), ("pay",), ("pay", "mail"))


def make_up(seed: str, count: int) -> tuple[Scenario, ...]:
    """So many scenarios; the same for the same seed."""
    chance = random.Random(f"{seed}/made up")
    return tuple(_make_up(chance, f"made_up_{number}") for number in range(1, count + 1))


def _make_up(chance: random.Random, name: str) -> Scenario:
    request = Request(tokens=TOKENS, key=chance.random() < 0.5, tools=chance.choice(_TOOLS))
    kind = chance.random()
    if kind < 0.2:
        return _kill_at_a_delta(chance, name, request)
    if kind < 0.3:
        return _kill_in_prefill(name, request)
    if kind < 0.5 and request.tools:
        return _kill_in_a_tool_call(chance, name, request)
    faults = [f"#{number}:{_choose_fault(chance)}" for number in range(1, chance.randint(1, 2) + 1)]
    return Scenario(name=name, says="Attempts are lost.", request=request, fault=",".join(faults))


def _choose_fault(chance: random.Random) -> str:
    """How one attempt is lost, before, in or after its first delta, or near its end."""
    deltas = chance.randint(0, TOKENS)
    cuts = ("die_before_headers", "die_after_headers", "die_after_role")
    counted = (f"die_after={deltas}", f"die_mid_event={deltas}")
    if chance.random() < 0.15:
        return chance.choice(("status=503", f"truncate={deltas}"))
    return f"{chance.choice((*cuts, *counted))}:{chance.choice(_HOW)}"


def _kill_at_a_delta(chance: random.Random, name: str, request: Request) -> Scenario:
    sent = chance.randint(1, TOKENS - 1)
    when = When(client_has=chance.randint(1, sent))
    return Scenario(
        name=name,
        says="The replica is killed when its client has some deltas.",
        request=request,
        fault=f"#1:hang_after={sent}",
        acts=(Act(when=when, do="kill"),),
    )


def _kill_in_prefill(name: str, request: Request) -> Scenario:
    return Scenario(
        name=name,
        says="The replica is killed in its prefill.",
        request=request,
        fault="#1:hang_after_headers",
        acts=(Act(when=When(engine="start"), do="kill"),),
    )


def _kill_in_a_tool_call(chance: random.Random, name: str, request: Request) -> Scenario:
    calls = chance.randint(1, len(request.tools))
    return Scenario(
        name=name,
        says="The replica is killed when a tool has acted, and may not have answered.",
        request=request,
        tools="hold" if calls == 1 else "answer",
        acts=(Act(when=When(tools_acted=calls), do="kill"),),
    )
