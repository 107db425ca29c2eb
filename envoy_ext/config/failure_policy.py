"""The `on_upstream_failure` block: what may follow when a replica or the way to it fails.

Most of its keys have one possible value. They stand in the file so that a reader of the file sees
the promise, and so that a wish for something else meets the reason why it cannot be had.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from envoy_ext.config.quantities import Duration
from envoy_ext.config.section import RefusedBecause, Section

REQUIREMENTS: Final = ("source_attempt_fenced", "retry_budget_available")


def _check_requirements(value: object) -> object:
    if not isinstance(value, list | tuple):
        return value
    if any(one not in REQUIREMENTS for one in value):
        raise PydanticCustomError("refused", "knows only {names}", {"names": " and ".join(REQUIREMENTS)})
    if "source_attempt_fenced" not in value:
        raise PydanticCustomError(
            "refused", "must hold source_attempt_fenced: without it two attempts could answer at once"
        )
    if "retry_budget_available" not in value:
        raise PydanticCustomError(
            "refused",
            "must hold retry_budget_available: without it replays would multiply the load of a failing pool",
        )
    return tuple(dict.fromkeys(value))


class BeforeFirstDelta(Section):
    """Nothing has been delivered: the computation may be repeated."""

    require: Annotated[
        tuple[str, ...],
        BeforeValidator(_check_requirements),
        Field(strict=False),
        WithJsonSchema(
            {
                "type": "array",
                "items": {"enum": list(REQUIREMENTS)},
                "allOf": [{"contains": {"const": name}} for name in REQUIREMENTS],
            }
        ),
    ] = REQUIREMENTS
    action: Annotated[
        Literal["retry_prefill_on_healthy_replica", "fail"],
        RefusedBecause(
            "before the first delta the request is repeated from its start on another replica, or not at all"
        ),
    ] = "retry_prefill_on_healthy_replica"
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 2
    """The first attempt counts."""
    max_replay_prompt_tokens: Annotated[int, Field(ge=0)] = 32_000
    """Dearer replays are refused at once."""
    max_replay_delay: Duration = 20.0
    """From the arrival of the request; later replays are refused."""


class AfterFirstDelta(Section):
    """Something has been delivered: the stream may only be finished or ended with the truth."""

    action: Annotated[
        Literal["terminate_stream"],
        RefusedBecause("after the first delta a second attempt would join text of two computations"),
    ] = "terminate_stream"
    client_error: Annotated[
        Literal["upstream_decode_interrupted"],
        RefusedBecause("clients tell an interrupted answer from others by this code"),
    ] = "upstream_decode_interrupted"
    automatic_retry: Annotated[Literal[False], RefusedBecause("there is no verified state transfer")] = False


class UncertainSourceLiveness(Section):
    """It is not known whether the failed attempt still runs."""

    action: Annotated[
        Literal["fence_source_attempt"],
        RefusedBecause(
            "an attempt that may still run must be proved unable to publish before another starts"
        ),
    ] = "fence_source_attempt"
    wait_for: Annotated[
        Literal["cancel_ack_or_lease_expiry"],
        RefusedBecause(
            "a cancel that was sent is no proof; only its acknowledgement or the end of the lease is"
        ),
    ] = "cancel_ack_or_lease_expiry"
    then: Annotated[
        Literal["retry_only_if_no_delta_was_sent"],
        RefusedBecause("after the first delta there is no retry, fenced or not"),
    ] = "retry_only_if_no_delta_was_sent"


class OnUpstreamFailure(Section):
    """The failover policy."""

    before_first_delta: BeforeFirstDelta = BeforeFirstDelta()
    after_first_delta: AfterFirstDelta = AfterFirstDelta()
    uncertain_source_liveness: UncertainSourceLiveness = UncertainSourceLiveness()

    @property
    def attempts_allowed(self) -> int:
        """Attempts of one exchange, the first included."""
        before = self.before_first_delta
        return before.max_attempts if before.action == "retry_prefill_on_healthy_replica" else 1
