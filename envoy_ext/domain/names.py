"""Names on the wire that the Envoy configuration and the adapters must agree on.

They stand here, and not beside one of the two, because `bootstrap` (which writes Envoy's
configuration) and `adapters` (which read what Envoy sends) must not import each other.
"""

from typing import Final

# Request headers between the two hops and towards the replica. Everything a client sends under
# OWN_PREFIX is removed at the ingress before any of these is set.
OWN_PREFIX: Final = "x-envoy-ext-"
ENVOY_PREFIX: Final = "x-envoy-"
EXCHANGE: Final = "x-envoy-ext-exchange"
"""Which exchange an attempt belongs to; set by the delivery filter, read by gate and access log."""
POOL: Final = "x-envoy-ext-pool"
"""Which pool's cluster the egress hop routes to; set by the delivery filter."""
CALLER: Final = "x-envoy-ext-caller"
"""Who a request is from, for what stands behind a gateway that asks by ext_authz; so are the next two."""
REQUEST_CLASS: Final = "x-envoy-ext-class"
DATA_CLASS: Final = "x-envoy-ext-data-class"
ATTEMPT: Final = "x-envoy-ext-attempt"
"""The attempt's id; set by the gate, seen by the replica and the access log."""
OPERATION: Final = "x-envoy-ext-operation"
"""Its operation; set by the delivery filter for what Envoy answers by itself, by the gate for the replica."""
LEASE: Final = "x-envoy-ext-lease"
LEASE_TTL: Final = "x-envoy-ext-lease-ttl"
ENDPOINT: Final = "x-envoy-ext-endpoint"
"""`ip:port` of the replica a replay must go to; read by the `override_host` policy."""

RUN: Final = "x-envoy-ext-run"
"""Which run of which job a request at the jobs listener is; set by the sidecar itself, which alone reaches
that listener. At the ingress it is removed with all of OWN_PREFIX."""

MESH_ATTEMPT: Final = "x-ext-mesh-attempt"
"""The x-envoy-attempt-count of an Envoy or mesh before us. The ingress listener copies it here before it
removes all x-envoy-*; the delivery filter reads and removes it. Not under OWN_PREFIX, which goes too."""

# Response headers between the two hops; the delivery filter removes them before the client.
REPLAY: Final = "x-envoy-ext-replay"
"""The only header the ingress hop's retry policy looks for: this attempt failed before its first delta.
The value says how."""
REFUSAL: Final = "x-envoy-ext-refusal"
"""The gate refused to start this attempt; final. The value is the contract's error code."""

TOOL_REPLAYED: Final = "x-envoy-ext-tool-replayed"
"""On the answer to a tool call: it is that of an earlier call, from the ledger. No tool may say so itself."""
ROUTE_ATTRIBUTE: Final = "xds.route_name"
"""Of a tool call: the tool that its path leads to."""

DEGRADED: Final = "x-degraded"
"""What was given up of a request, for its client: the rungs' names, in order."""

# The gRPC initial metadata key that tells the ext_proc filters apart, and its values.
ROLE_METADATA: Final = "x-envoy-ext-role"
ROLE_CALLER: Final = "caller"
ROLE_DELIVERY: Final = "delivery"
ROLE_RUN: Final = "run"
"""Delivery, of what comes through the jobs listener."""
ROLE_ATTEMPT: Final = "attempt"
ROLE_TOOL: Final = "tool"

# Access-log names: one log per hop.
LOG_EXCHANGES: Final = "exchanges"
LOG_ATTEMPTS: Final = "attempts"

# What Envoy knows of an endpoint: the replica's id, in its metadata, and how a filter reads it back.
METADATA_NAMESPACE: Final = "envoy_ext"
METADATA_REPLICA: Final = "replica"
REPLICA_ATTRIBUTE: Final = "xds.upstream_host_metadata.filter_metadata['envoy_ext']['replica']"

# Clusters and listeners in the rendered configuration.
CLUSTER_SIDECAR: Final = "envoy_ext_sidecar"
CLUSTER_SIDECAR_LOGS: Final = "envoy_ext_sidecar_logs"
CLUSTER_SIDECAR_STREAMS: Final = "envoy_ext_sidecar_streams"
"""The native transport's; without it CLUSTER_SIDECAR carries the streams too."""
CLUSTER_EGRESS: Final = "envoy_ext_egress"
POOL_CLUSTER_PREFIX: Final = "pool_"
TOOL_CLUSTER_PREFIX: Final = "tool_"
LISTENER_INGRESS: Final = "ingress"
LISTENER_EGRESS: Final = "egress"
LISTENER_JOBS: Final = "jobs"
LISTENER_TOOLS: Final = "tools"
