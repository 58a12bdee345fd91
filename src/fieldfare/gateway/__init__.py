"""The gateway: the HTTP API over the event log, the registry and the match log.

    admission/   access control and limits: connections, the request guard, bodies, load
    routes/      request handlers by path; openapi/ describes them
    publishing/  decoding of request bodies into events
    delivery/    delivery of matches and events to waiting subscribers
    transports/  formats of delivery: pulls, streams
    push/        delivery to push addresses
    maintenance/ background work: metrics, readiness, retention, repair of corrupt files

`context` builds the parts of one process and gives each only what it needs; `app` has their routes and the
middleware. `writer` writes to disk, `subscriptions` is the API's view of the registry.
"""
