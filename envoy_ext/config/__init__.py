"""The configuration file: its models, its reader and its JSON Schema.

`load_config` is the door. What it returns is frozen and complete; whatever is wrong with a file
comes out of it as one `ConfigError` that holds a line for each mistake.
"""

from envoy_ext.config.callers import Callers
from envoy_ext.config.callers_file import CallersFile, Vocabulary, find_loose_mode, load_callers_file
from envoy_ext.config.circuit import Circuit
from envoy_ext.config.discovery import Discovery, Kubernetes
from envoy_ext.config.failure_policy import (
    AfterFirstDelta,
    BeforeFirstDelta,
    OnUpstreamFailure,
    UncertainSourceLiveness,
)
from envoy_ext.config.idempotency import Idempotency
from envoy_ext.config.jobs import Jobs
from envoy_ext.config.journal import Journal, Sentinel
from envoy_ext.config.ladder import Rung
from envoy_ext.config.model import (
    Admin,
    Admission,
    Config,
    DataClass,
    Envoy,
    Ingress,
    Lease,
    Limits,
    Operations,
    RetryBudget,
    Shutdown,
    Sidecar,
    TrafficClass,
)
from envoy_ext.config.pools import (
    Capacity,
    Cost,
    Fingerprint,
    Hysteresis,
    Pool,
    Readiness,
    Replica,
)
from envoy_ext.config.reading import config_schema, load_config, parse_config
from envoy_ext.config.tools import ToolListener, ToolRoute, Tools
from envoy_ext.config.urls import Origin, WebPlace

__all__ = [
    "Admin",
    "Admission",
    "AfterFirstDelta",
    "BeforeFirstDelta",
    "Callers",
    "CallersFile",
    "Capacity",
    "Circuit",
    "Config",
    "Cost",
    "DataClass",
    "Discovery",
    "Envoy",
    "Fingerprint",
    "Hysteresis",
    "Idempotency",
    "Ingress",
    "Jobs",
    "Journal",
    "Kubernetes",
    "Lease",
    "Limits",
    "OnUpstreamFailure",
    "Operations",
    "Origin",
    "Pool",
    "Readiness",
    "Replica",
    "RetryBudget",
    "Rung",
    "Sentinel",
    "Shutdown",
    "Sidecar",
    "ToolListener",
    "ToolRoute",
    "Tools",
    "TrafficClass",
    "UncertainSourceLiveness",
    "Vocabulary",
    "WebPlace",
    "config_schema",
    "find_loose_mode",
    "load_callers_file",
    "load_config",
    "parse_config",
]
