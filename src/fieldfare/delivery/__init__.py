"""Delivery: state machines without I/O, from the match log to the consumers of messages.

    match log ──looks──▶ ReadScheduler ──feeds──▶ Delivery ──takes──▶ a session: one stream, or all pulls
                                                    │
                                           cursor, dead letters

`delivery` is the delivery of one subscription: leases, acks, redelivery, dead letters. It has one
`partition_delivery` for each partition of the log, and keeps in `attempts` the messages whose number of
attempts is not one. `read_scheduler` tracks which deliveries wait, and from where the match log is read for
them. A runtime (`gateway/delivery/service.py`) owns the clock, the threads and the files; transports
(`gateway/transports/`) only carry bytes.
"""
