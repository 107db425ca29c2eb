"""A class's ladder, from its configuration to what the core decides with.

Belongs to the composition layer, beside `app`.
"""

from collections.abc import Iterator, Mapping

from envoy_ext.config import Rung, TrafficClass
from envoy_ext.domain import ladder
from envoy_ext.domain.ids import PoolName


def build_ladder(one: TrafficClass, models: Mapping[PoolName, str]) -> ladder.Ladder:
    """The ladder of a class; `models` are what each pool's first model is called.

    Raises:
        ConfigError: the text of an answer cannot be read.
    """
    rungs = tuple(built for rung in one.ladder for built in _build_rung(rung, models))
    return ladder.Ladder(rungs, one.side_effects)


def _build_rung(rung: Rung, models: Mapping[PoolName, str]) -> Iterator[ladder.Rung]:
    """The rung; none for `refuse`, which is what comes when there is none."""
    if rung.shorten_generation is not None:
        yield ladder.ShortenGeneration(rung.shorten_generation.max_tokens)
    if rung.shorten_context is not None:
        yield ladder.ShortenContext(rung.shorten_context.keep_turns, rung.shorten_context.max_prompt_tokens)
    if rung.pool is not None:
        yield ladder.OtherPool(rung.pool, models[rung.pool])
    if rung.job:
        yield ladder.LaterJob()
    if rung.template is not None:
        yield ladder.Template(rung.template.read())
    if rung.hand_off is not None:
        yield ladder.HandOff(rung.hand_off.webhook, rung.hand_off.text, rung.hand_off.timeout)
