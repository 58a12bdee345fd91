"""Matching with the subscriptions spread over matchers, as BlueDove and E-StreamHub do: on Spark."""
