"""Balancing load between the brokers of a site, on an operator's word: see docs/decisions/balancing.md.

In reading order: `window` (the last matches, from both logs), `meter` (the load of this broker) and
`balancer` (what it would do, and doing it). The decisions are those of `fieldfare.balancing`.
"""
