"""What the examples with real engines share: processes, a client, scenarios and what must come of them."""
