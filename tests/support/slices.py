"""EndpointSlices as the Kubernetes API writes them (discovery.k8s.io/v1), in few words."""

from typing import Any

HTTP = {"name": "http", "port": 8000, "protocol": "TCP"}
METRICS = {"name": "metrics", "port": 9000, "protocol": "TCP"}


def pod(
    name: str,
    address: str,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    uid: str | None = None,
    node: str | None = None,
    zone: str | None = None,
) -> dict[str, Any]:
    """One endpoint of a slice; what is None is left out, as the API leaves it out."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    endpoint: dict[str, Any] = {
        "addresses": [address],
        "conditions": {key: value for key, value in conditions.items() if value is not None},
        "targetRef": {"kind": "Pod", "name": name, "namespace": "ml", "uid": uid or f"uid-of-{name}"},
    }
    if node is not None:
        endpoint["nodeName"] = node
    if zone is not None:
        endpoint["zone"] = zone
    return endpoint


def ending(name: str, address: str, **more: Any) -> dict[str, Any]:
    """A pod that was deleted and still ends its streams, as the controller writes it."""
    return pod(name, address, ready=False, serving=True, terminating=True, **more)


def slice_of(
    *endpoints: dict[str, Any],
    name: str = "vllm-abc",
    family: str = "IPv4",
    ports: list[dict[str, Any]] | None = None,
    service: str = "vllm",
    version: str = "1",
) -> dict[str, Any]:
    """A slice with these endpoints."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-of-{name}",
            "resourceVersion": version,
            "generation": 1,
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": service,
            },
        },
        "addressType": family,
        "ports": [HTTP] if ports is None else ports,
        "endpoints": list(endpoints),
    }
