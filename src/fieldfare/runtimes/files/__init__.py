"""Readers of the files of every command: ``kinds`` finds them; ``lines``, ``tables``, ``subscriptions`` read.

The base installation reads JSON lines and CSV; Parquet and Arrow need pyarrow, which only ``tables`` imports.
"""
