"""Compile every kernel once, so that no later process waits for it: ``python -m fieldfare.matching.warm``.

Numba keeps what it compiled beside the sources (or in the user's cache where that folder is read-only).
"""
