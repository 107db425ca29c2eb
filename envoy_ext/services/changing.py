"""Openings with a changed body: shortened, or for another pool's model. What they are for is `ladders`'."""

from dataclasses import replace

from envoy_ext.domain.api import InvalidRequest, ReadRequest, parse_request, read_facts
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.ladder import CHANGES_MODEL, OtherPool, ShortenGeneration, Shortening
from envoy_ext.domain.outcomes import RungName
from envoy_ext.domain.prompt_size import JsonObject
from envoy_ext.domain.rewriting import MAX_CHANGED_BYTES, encode_body, name_model, shorten_generation
from envoy_ext.domain.turns import shorten_context
from envoy_ext.services.admission import Arrival, HashPrompt
from envoy_ext.services.opening import Opening


class Changing:
    """Reads a body again, since nobody keeps what was read of it, and writes it anew."""

    def __init__(self, hash_prompt: HashPrompt) -> None:
        self._hash_prompt = hash_prompt

    def shorten(self, opening: Opening, rungs: tuple[Shortening, ...]) -> Opening:
        """The request with what these rungs give up; as it is, where they change nothing."""
        body = _read_body(opening) if rungs else None
        if body is None:
            return opening
        family = opening.arrival.family
        given_up: list[RungName] = []
        for rung in rungs:
            if isinstance(rung, ShortenGeneration):
                shorter = shorten_generation(family, body, rung.max_tokens)
            else:
                shorter = shorten_context(
                    family, body, keep_turns=rung.keep_turns, max_prompt_tokens=rung.max_prompt_tokens
                )
            if shorter is not None:
                body = shorter
                given_up.append(rung.name)
        earlier = opening.admitted.request.degraded
        degraded = (*given_up, *earlier)
        changed = self._write(opening, body, degraded, opening.admitted.pool) if given_up else None
        return opening if changed is None else changed

    def move(self, opening: Opening, way: OtherPool) -> Opening | None:
        """The request for another pool, with the name of its model; None where that cannot be."""
        if opening.arrival.family not in CHANGES_MODEL:
            return None
        body = _read_body(opening)
        if body is None:
            return None
        degraded = (*opening.admitted.request.degraded, way.name)
        return self._write(opening, name_model(body, way.model), degraded, way.pool)

    def _write(
        self, opening: Opening, body: JsonObject, degraded: tuple[RungName, ...], pool: PoolName
    ) -> Opening | None:
        encoded = encode_body(body)
        if encoded is None:
            return None
        before = opening.admitted.request
        facts = read_facts(opening.arrival.family, body, before.path)
        prefixes = self._hash_prompt(pool, ReadRequest(facts, body))
        # The journal says what was asked for, and `degraded` that it was given by another.
        facts = replace(facts, model=before.facts.model)
        request = replace(before, facts=facts, degraded=degraded, changed_body=encoded)
        return replace(
            opening, admitted=replace(opening.admitted, request=request, pool=pool, prefixes=prefixes)
        )


def _read_body(opening: Opening) -> JsonObject | None:
    """The body as it would go on at this moment; None where it is not here, or too large to be changed."""
    arrival: Arrival = opening.arrival
    changed = opening.admitted.request.changed_body
    body, encoding = (arrival.body, arrival.content_encoding) if changed is None else (changed, "")
    if not 0 < len(body) <= MAX_CHANGED_BYTES:
        return None
    try:
        return parse_request(arrival.family, body, encoding, path=arrival.path).body
    except InvalidRequest:  # it was read once: only a bound that is near can have changed
        return None
