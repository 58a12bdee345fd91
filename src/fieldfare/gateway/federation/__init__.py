"""Links to other fieldfare sites: each is a broker with its own log, registry and pipeline.

In reading order: `wire` (what brokers send one another), `topology` and `clusters` (next hops), `interest`
(filters out, and filters in), `entries` (which events go where), `forwarder` (matches to outboxes), `origins`
and `inbox` (entries into the log), `links` and `link_filters` (the requests), and `service`, which puts them
together.
"""
