"""Where the list of a pool's replicas comes from."""

import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.section import Matching, RefusedBecause, Section
from envoy_ext.config.urls import Origin, parse_replica_url

LABEL: Final = Matching(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a Kubernetes name: 1 to 63 of a-z, 0-9 and -, not at either end"
)

_PORT_FORM: Final = "must be the name of a port, or a number from 1 to 65535 without quotes"


def _check_port(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    if isinstance(value, str) and re.fullmatch(LABEL.pattern, value) and not value.isdigit():
        return value
    raise PydanticCustomError("port", "{form}", {"form": _PORT_FORM})


PortOrName = Annotated[
    int | str,
    BeforeValidator(_check_port),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": f"^({LABEL.pattern})$"},
            ]
        }
    ),
]


def _check_host_port(value: str) -> str:
    # Read as the URL of a replica, so that both have one form.
    if "/" in value or not re.search(r":[0-9]+$", value):
        raise PydanticCustomError("dns", "must be host:port, such as vllm.ml.svc.cluster.local:8000")
    if parse_replica_url(f"http://{value}").is_ip:
        raise PydanticCustomError("dns", "is an address already: list it under replicas")
    return value


HostPort = Annotated[
    str, AfterValidator(_check_host_port), WithJsonSchema({"type": "string", "pattern": r"^[^/?#@\s]+:\d+$"})
]


def _check_api(value: str) -> str:
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or port == 0:
        raise PydanticCustomError("api", "not a URL of the form https://host:port")
    if parts.username is not None or parts.password is not None:
        raise PydanticCustomError("api", "must not hold a user name or password: use token_file")
    if parts.scheme == "http" and host not in ("127.0.0.1", "::1", "localhost"):
        raise PydanticCustomError(
            "api", "must be https, since a token goes there; http is for a proxy on loopback"
        )
    return value


ApiUrl = Annotated[
    str,
    AfterValidator(_check_api),
    WithJsonSchema({"type": "string", "pattern": r"^https?://[^/?#@]+[^?#]*$"}),
]


class Kubernetes(Section):
    """The pods of a Service, by its EndpointSlices. What is not given is what a pod finds in itself."""

    service: Annotated[str, LABEL]
    port: PortOrName
    """Of the pods (`targetPort`), by name or number."""
    namespace: Annotated[str, LABEL] | None = None
    """None: the sidecar's own."""
    api: ApiUrl | None = None
    """None: the API of the cluster that the sidecar runs in."""
    token_file: str | None = None
    """None: the token of the sidecar's service account. It is read anew for each question."""
    ca_file: str | None = None
    """None: the cluster's own CA."""


class Discovery(Section):
    """Where the list of replicas comes from: exactly one of the three."""

    static: Annotated[
        Literal[True, None],
        RefusedBecause("where dns or kubernetes finds the replicas, leave static out"),
    ] = None
    """The list under `replicas`."""
    dns: HostPort | None = None
    """`host:port`: each address of the host is a replica."""
    kubernetes: Kubernetes | None = None

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        given = [name for name in ("static", "dns", "kubernetes") if getattr(self, name) is not None]
        if len(given) > 1:
            raise PydanticCustomError(
                "discovery", "has {given}: keep one of them", {"given": " and ".join(given)}
            )
        if not given:
            raise PydanticCustomError("discovery", "needs one of static, dns and kubernetes")
        return self

    @property
    def source(self) -> Literal["static", "dns", "kubernetes"]:
        """Which of the three it is."""
        if self.kubernetes is not None:
            return "kubernetes"
        return "static" if self.dns is None else "dns"

    @property
    def dns_origin(self) -> Origin:
        """Host and port of `dns`."""
        assert self.dns is not None
        return parse_replica_url(f"http://{self.dns}")
