"""Delivery: state machines without I/O, from the match log to the consumers of messages.

    match log ──looks──▶ ReadScheduler ──feeds──▶ Delivery ──takes──▶ a session: one stream, or all pulls
                                                    │
                                           cursor, dead letters

`delivery` is the delivery of one subscription: leases, acks, redelivery, dead letters. It has one
`partition_delivery` for each partition of the log, and keeps in `attempts` the messages whose number of
attempts is not one. `read_scheduler` tracks which deliveries wait, and from where the match log is read for
them.

A message is in one of five states. These methods of `Delivery` move it, and nothing else does:

    from       to         by
    pending    in flight  take
    pending    settled    ack, ack_up_to, seek
    pending    dead       take, terminate
    in flight  settled    ack, ack_up_to, seek
    in flight  pending    nack, expire, release, give_back, seek
    in flight  delayed    nack, expire
    in flight  dead       nack, expire, terminate
    delayed    pending    expire, seek
    delayed    settled    ack, ack_up_to, seek
    delayed    dead       terminate
    dead       pending    retry, seek
    dead       settled    ack, ack_up_to
    settled    pending    seek, retry

*Pending*: to be delivered, for the first time or again (`PartitionDelivery`, `RetryQueue`, `KeyOrdering`).
*In flight*: leased to a session (`Leases`). *Delayed*: to be redelivered at a later time (`RetryQueue`).
*Dead*: given up, a dead letter (`Attempts`). *Settled*: acked, skipped, or given up by a subscription without
dead letters: for such a subscription, the rows to *dead* lead to *settled*. A settled message is retried if
its dead letter is from before a `seek`. `take` first does what `expire` does.

The key of a message in flight is in several places, each of which answers another question without a search
of all messages: the window has the order, from which the cursor and the runs of acks follow; `Leases` says
who holds it; a lease with a deadline lists its keys for its expiry; and an automatic stream has the order of
sending, as redelivered messages are sent after later ones.

A runtime (`gateway/delivery/service.py`) owns the clock, the threads and the files; transports
(`gateway/transports/`) only carry bytes.
"""
