"""Filters of other systems, converted exactly or rejected: one module for each system.

A conversion assumes a mapping of the system's messages to CloudEvents, which ``docs/coming-from/`` states.
``systems`` is the table of all of them.
"""
