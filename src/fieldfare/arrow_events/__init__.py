"""Events as Arrow tables: the format of log records that need no decoding.

``stream`` reads and writes a record's payload.
"""
