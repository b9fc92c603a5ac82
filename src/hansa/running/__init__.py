"""A phase while it runs: the loop over rounds, the ledger, and the metrics."""
