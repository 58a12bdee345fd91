"""The gateway's background work: maintenance of its files, metrics and readiness."""
