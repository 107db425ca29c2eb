"""What a file of scenarios may say: a request, what is done to it and when, and what must come of it."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.mistakes import describe_errors, format_location
from envoy_ext.config.reading import read_yaml
from envoy_ext.config.section import ListOf, NotEmpty, Section, Word
from envoy_ext.domain.errors import ConfigError
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState
from envoy_ext.domain.tool_calls import CallState
from envoy_ext.sim.faults import FaultError, parse_faults

FAILURE_POLICY: Final = Path(__file__).with_name("failure_policy.yaml")
"""The scenarios of the failure policy, as they come with the product."""

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Replica = Literal["left", "right", "far", "near"]
"""`left` and `right` stand in one pool; `far`, behind a network of its own, and `near` in another."""
Tool = Literal["pay", "mail"]
"""Both act on the world: neither may be called twice."""
Outcome = Annotated[AttemptOutcome, Field(strict=False)]


class Request(Section):
    """What the client asks for: a chat that streams. Its prompt follows from the seed."""

    tokens: Annotated[int, Field(ge=1, le=64)] = 6
    """How long the answer is."""
    key: bool = False
    """With an Idempotency-Key, which follows from the seed too."""
    tools: ListOf[Tool] = ()
    """What each attempt calls before its first delta, one after the other."""
    first: Replica | None = None
    """Where the first attempt goes; Envoy chooses unless it is said."""


class When(Section):
    """The moment of an act: one of these has come."""

    client_has: Some | None = None
    """The client has so many deltas."""
    engine: Literal["start", "token", "chunk"] | None = None
    """An engine has logged this of the request, for the first time."""

    tools_acted: Some | None = None
    """The tools have acted so often."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if [self.client_has, self.engine, self.tools_acted].count(None) != 2:
            raise PydanticCustomError("when", "name one moment: client_has, engine or tools_acted")
        return self


class Act(Section):
    """Something that is done to the replicas or their network, when its moment has come."""

    when: When
    do: Literal["kill", "cut", "heal"]
    """`kill`: SIGKILL to the replica that was asked last. `cut`, `heal`: the network of `far`."""


class ExpectedAttempt(Section):
    """One attempt, as the journal and the engine that was asked must tell it."""

    outcome: Outcome
    replica: Replica | None = None
    computed: Count
    """Tokens that its engine has computed."""
    published: Count
    """Deltas that its engine has written, whole."""


class Expected(Section):
    """What must come of it."""

    answer: Literal["whole", "interrupted", "refused"]
    """To the client: one whole answer; a part of one and the event that says so; or an HTTP error."""
    delivered: Count
    """Deltas that the client has."""
    status: int = 200
    code: Word | None = None
    """Of the error, in the contract's words; also the journal's."""
    reason: Word | None = None
    attempts: ListOf[ExpectedAttempt]
    state: Annotated[OperationState, Field(strict=False)]
    ending: Annotated[Ending, Field(strict=False)]
    cancels: Count = 0
    """Attempts that their engine was told to end."""
    executions: ListOf[Word] = ()
    """What the tools have done, by the tool's name, in order."""
    tool_calls: ListOf[Annotated[CallState, Field(strict=False)]] = ()
    """What the ledger knows of each call, in order."""
    results_replayed: Count = 0
    """Results that an engine was given out of the ledger."""
    replays_refused: ListOf[Word] = ()
    """The codes with which replays were not allowed."""


class Scenario(Section):
    """One failure, from the request to what must come of it."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")]
    says: Word
    """What happens, for people."""
    request: Request = Request()
    fault: str = ""
    """What is asked of the engines, in the words of `x-sim-fault`."""
    tools: Literal["answer", "hold"] = "answer"
    """`hold`: a tool acts, and keeps its answer to itself."""
    acts: ListOf[Act] = ()
    """In order: each waits for its moment when the one before is done."""
    expect: Expected | None = None
    """None: nothing but what holds whatever is played."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            parse_faults(self.fault)
        except FaultError as error:
            raise PydanticCustomError("fault", "fault: {why}", {"why": str(error)}) from None
        return self

    @property
    def pool(self) -> str:
        """`apart` where the network is cut or a replica of that pool is named, else `beside`."""
        named = self.request.first in ("far", "near") or any(act.do in ("cut", "heal") for act in self.acts)
        return "apart" if named else "beside"


class Scenarios(Section):
    """A file of scenarios, all of them played with one model."""

    model_revision: Word
    """What the replicas say of their weights."""
    scenarios: Annotated[ListOf[Scenario], NotEmpty()]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [one.name for one in self.scenarios]
        if len(set(names)) != len(names):
            raise PydanticCustomError("twice", "scenarios: each needs a name of its own")
        return self


def read_scenarios(path: Path = FAILURE_POLICY) -> Scenarios:
    """The scenarios of a file.

    Raises:
        ConfigError: a line for each mistake.
    """
    data, repeated = read_yaml(path.read_text(encoding="utf-8"), path.name)
    if repeated:
        raise ConfigError(repeated)
    try:
        return Scenarios.model_validate(data)
    except ValidationError as error:
        found = [(format_location(at), said) for at, said in describe_errors(error, Scenarios)]
        lines = [": ".join(part for part in (path.name, at, said) if part) for at, said in found]
        raise ConfigError(lines) from None
