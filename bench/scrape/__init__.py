"""The processes of the scrape benchmark: the replicas, the sidecar that is measured, and a reference."""
