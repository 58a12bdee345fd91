"""Delivery: machines without I/O, from the match log to those who take messages.

    match log ──looks──▶ Frontier ──feeds──▶ Delivery ──takes──▶ a session: one stream, or all pulls
                                               │
                                      cursor, dead letters

`delivery` is one subscription's: what is fed, leased, acked, to be given again, given up; it has a `lane` for
each partition of the log, and remembers in `tries` what was not given just once. `frontier` knows who waits,
and from where the match log has to be read for them. A runtime (`gateway/delivery/pump.py`) has the clock,
the threads and the files; transports (`gateway/transports/`) only carry.
"""
