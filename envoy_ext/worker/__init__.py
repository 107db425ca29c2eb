"""What runs inside a replica: it holds the lease of each attempt, and stops what may act no more.

It imports the domain and nothing else of the package, so that it can live in an engine's process.
"""

from envoy_ext.worker.middleware import LeaseMiddleware
from envoy_ext.worker.tool_headers import tool_headers

__all__ = ["LeaseMiddleware", "tool_headers"]
