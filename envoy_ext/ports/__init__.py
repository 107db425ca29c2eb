"""What the services need from outside, as Protocols; each says what its implementations promise."""

from envoy_ext.ports.clock import Clock
from envoy_ext.ports.exchanges import (
    AttemptSink,
    Connection,
    Connections,
    DeliverySink,
    HandedOver,
    HandOffs,
    Observer,
    RunSender,
    Trace,
    TraceKind,
)
from envoy_ext.ports.replicas import (
    AbortSource,
    DiscoverySource,
    IdentitySource,
    Reach,
    ReachProbe,
    ScrapeSource,
)
from envoy_ext.ports.store import NO_OPERATION, Archive, JobStore, Journal, Store, StoreSize, ToolLedger

__all__ = [
    "NO_OPERATION",
    "AbortSource",
    "Archive",
    "AttemptSink",
    "Clock",
    "Connection",
    "Connections",
    "DeliverySink",
    "DiscoverySource",
    "HandOffs",
    "HandedOver",
    "IdentitySource",
    "JobStore",
    "Journal",
    "Observer",
    "Reach",
    "ReachProbe",
    "RunSender",
    "ScrapeSource",
    "Store",
    "StoreSize",
    "ToolLedger",
    "Trace",
    "TraceKind",
]
