"""What clients talk to: HTTP in front, the log, the registry and the match log behind.

    admission/   who may ask, and how much: connections, the door, bodies, load
    routes/      what is asked, path by path; openapi/ describes it
    publishing/  bodies into events
    delivery/    matches and events to those who wait for them
    transports/  how they are carried: pulls, streams
    upkeep/      what is done besides answering: figures, readiness, retention, what is broken

`context` puts the parts of one process together, once, and gives each what it needs and no more; `app` is
their routes and what stands before them. `writer` is the way to the disk, `subscriptions` what is known of
the registry.
"""
