"""envoy-ext: honest failover for self-hosted LLM replicas behind Envoy."""

__version__ = "0.1.0"
