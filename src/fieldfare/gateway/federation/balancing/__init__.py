"""Balancing load between brokers, by itself or on an operator's word: see docs/decisions/balancing.md.

In reading order: `window` (the last matches, from both logs), `meter` (the load of this broker), `rows`
(loads of other brokers), `planning` (what would move), `edge_runner` (the machine that decides by itself) and
`balancer` (what operators see and begin). The decisions are those of `fieldfare.balancing`.
"""
