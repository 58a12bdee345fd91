"""Subscriptions that move from one broker to another, exactly: see docs/decisions/balancing.md.

In reading order: `book` (the moves of this broker, stored and in memory), `leaving` and `arriving` (the two
ends of a session), `arrival_cursor` (what was delivered before), and `sessions`, which puts them together.
"""
