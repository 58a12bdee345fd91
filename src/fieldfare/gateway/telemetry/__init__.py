"""Spans of OpenTelemetry for sampled events, from the request that publishes them to their ack."""
