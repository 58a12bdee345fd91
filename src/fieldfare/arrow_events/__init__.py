"""Events as Arrow tables: the form of a record in the log that needs no decoding.

``stream`` reads and writes a record's payload.
"""
