"""The client for asyncio, and the source of the synchronous client.

The modules are written once, here; ``make client`` generates their twins in ``client/synchronous``. Waiting,
waking and starting workers differ between the two: each package has its own ``concurrency`` module for that,
with matching names.
"""
