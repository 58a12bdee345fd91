"""Routing between brokers, without I/O: the topology of D-DBR's multicasting layer.

Ji et al. 2013, "Towards Scalable Publish/Subscribe Systems". In reading order: `messages`, `overlay`
(topology and shortest paths), `checking`. The paper's brokers as machines, with their multicasting and
matching layers (FBR, D-DBR, MERC), are in `lab/`: in the service, outboxes are stored, and Spark matches
(`gateway/federation/`).
"""
