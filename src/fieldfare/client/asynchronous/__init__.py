"""The client for asyncio programs, and the source of the one for ordinary programs.

``client``, ``publisher`` and ``subscriber`` are written once, here; ``make client`` writes their twins in
``client/synchronous`` from them. What the two kinds of program do differently, waiting, waking and starting,
is in each folder's own ``concurrency``, which has the same names in both.
"""
