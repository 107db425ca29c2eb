"""`envoy-ext run` with an example's config, and what it and its Envoy say of themselves."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from real_engines import client
from real_engines.engine import Replica
from real_engines.processes import Process, Unexpected, find_free_port, wait_for

START_S = 60.0
CALL_S = 60.0
TTL_S = 6.0
MARGIN_S = 1.0
"""Of a lease, where engines have workers."""
ENVOY_EXT = [sys.executable, "-m", "envoy_ext"]

Reading = dict[str, Any]
"""What /v1/replicas says of one replica."""


class Gateway(Process):
    """The gateway on free ports, over these replicas."""

    def __init__(
        self, config_file: Path, replicas: dict[str, Replica], directory: Path, *, with_leases: bool = False
    ) -> None:
        self.url = self.operations_url = ""
        config = yaml.safe_load(config_file.read_text())
        self.pool = config["pools"][0]["name"]
        self.stale_s = float(config["pools"][0]["readiness"]["stale"].removesuffix("s"))
        self.replicas = replicas
        admin_port = find_free_port()
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        config["ingress"]["port"] = 0
        config["operations"] = {"port": 0}
        config["envoy"] = {**config.get("envoy", {}), "admin": {"port": admin_port}}
        config["journal"]["path"] = str(directory / "journal.db")
        for replica in config["pools"][0]["replicas"]:
            replica["url"] = replicas[replica["id"]].url
        self.lease_url = ""
        """Where it takes workers' questions, if it does."""
        if with_leases:
            port = find_free_port()
            door = {"address": "127.0.0.1", "port": port}
            config["lease"] = {"ttl": f"{TTL_S:.0f}s", "margin": f"{MARGIN_S:.0f}s", "http": door}
            self.lease_url = f"http://127.0.0.1:{port}"
        path = directory / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        super().__init__([*ENVOY_EXT, "run", "-c", str(path)], directory / "gateway.log")

    def start(self) -> None:
        """Start it, and wait until clients can connect."""
        self.launch()
        wait_for(self._read_urls, "the gateway", START_S)

    def _read_urls(self) -> bool:
        if not self.alive:
            raise Unexpected("the gateway ended by itself")
        found = re.search(r"clients: (\S+)  operations: (\S+)", self.log.read_text())
        if found is not None:
            self.url, self.operations_url = found.groups()
        return found is not None

    # --- the journal ------------------------------------------------------------------------------

    def show(self, operation_id: str) -> dict[str, Any]:
        """`envoy-ext operations show ID --json`."""
        return dict(self.ask("operations", "show", operation_id))

    def list_newest(self, count: int) -> list[dict[str, Any]]:
        """`envoy-ext operations list --json`."""
        return list(self.ask("operations", "list", "--limit", str(count)))

    def ask(self, *words: str) -> Any:
        """What one of the commands answers."""
        command = [*ENVOY_EXT, *words, "--json", "--url", self.operations_url]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S)
        if asked.returncode != 0:
            raise Unexpected(f"envoy-ext {' '.join(words)}: {asked.stdout}{asked.stderr}")
        return json.loads(asked.stdout)

    def wait_ended(self, operation_id: str) -> dict[str, Any]:
        """The operation, once the journal knows how it and its attempts ended."""

        def find() -> dict[str, Any] | None:
            found = self.show(operation_id)
            return found if has_ended(found) else None

        return wait_for(find, f"the end of {operation_id} in the journal")

    def wait_all_ended(self, count: int) -> list[dict[str, Any]]:
        """The newest operations, once the journal knows the end of each."""

        def find() -> list[dict[str, Any]] | None:
            listed = self.list_newest(count)
            return listed if all(has_ended(one) for one in listed) else None

        return wait_for(find, "the ends of all operations in the journal")

    # --- the replicas, as the sidecar reads them --------------------------------------------------

    def read_all(self) -> dict[str, Reading]:
        """Every replica at one moment, as /v1/replicas has it."""
        page = json.loads(client.get(self.operations_url, "/v1/replicas")[2])
        return {one["id"]: dict(one) for one in page["replicas"]}

    def read(self, replica: Replica) -> Reading:
        """One replica."""
        return self.read_all()[replica.name]

    def wait_reading(self, replica: Replica, limit_s: float = 30.0, **wanted: Any) -> Reading:
        """Its reading, once it says all of that."""
        last: Reading = {}

        def find() -> Reading | None:
            last.update(self.read(replica))
            return last if all(last[name] == value for name, value in wanted.items()) else None

        try:
            return wait_for(find, f"{replica.name} with {wanted}", limit_s)
        except Unexpected as trouble:
            raise Unexpected(f"{trouble}; it has {last}") from None

    def order(self, replica: Replica, word: str) -> None:
        """`drain` or `undrain`, as the commands of these names give it."""
        status, _, answer = client.post(self.operations_url, f"/v1/replicas/{replica.name}/{word}", {})
        if status >= 300:
            raise Unexpected(f"{word} {replica.name}: {status} {answer!r}")

    def wait_serving(self) -> None:
        """Until every replica is ready, and Envoy has heard so."""
        for replica in self.replicas.values():
            self.wait_reading(replica, replica.engine.start_s, ready=True)
            self.wait_heard(replica, healthy=True)

    def wait_heard(self, replica: Replica, *, healthy: bool) -> None:
        """Until Envoy gives a replica new work, or none any more."""

        def has_heard() -> bool:
            health = self._find_host(replica).get("health_status", {}).get("eds_health_status")
            return (health == "HEALTHY") is healthy

        told = "healthy" if healthy else "out of service"
        wait_for(has_heard, f"Envoy to hear that {replica.name} is {told}")

    # --- Envoy ------------------------------------------------------------------------------------

    def count_received_bytes(self) -> int:
        """What Envoy has read from the replicas so far."""
        name = f"cluster.pool_{self.pool}.upstream_cx_rx_bytes_total"
        page = client.get(self.admin_url, f"/stats?filter={name}")[2].decode()
        return int(page.rpartition(":")[2])

    def find_asked(self) -> Replica:
        """The one replica that Envoy has given a request which is not answered to its end."""

        def find() -> Replica | None:
            asked = [one for one in self.replicas.values() if self._count_host(one, "rq_active")]
            return asked[0] if len(asked) == 1 else None

        return wait_for(find, "a request at one of the replicas")

    def count_asked(self, replica: Replica) -> int:
        """How many requests Envoy has sent to a replica since it started."""
        return self._count_host(replica, "rq_total")

    def _count_host(self, replica: Replica, name: str) -> int:
        stats = self._find_host(replica).get("stats", [])
        return sum(int(one.get("value", 0)) for one in stats if one["name"] == name)

    def _find_host(self, replica: Replica) -> dict[str, Any]:
        page = json.loads(client.get(self.admin_url, "/clusters?format=json")[2])
        for cluster in page["cluster_statuses"]:
            if cluster["name"] == f"pool_{self.pool}":
                for host in cluster.get("host_statuses", []):
                    if host["address"]["socket_address"]["port_value"] == replica.port:
                        return dict(host)
        return {}


def has_ended(operation: dict[str, Any]) -> bool:
    """Whether its end and those of its attempts are in the journal."""
    return bool(operation["ended_at"]) and all(attempt["ended_at"] for attempt in operation["attempts"])
