"""KV exchange between workers: tickets, transfers and their acknowledgement. Knows blocks, not requests."""
