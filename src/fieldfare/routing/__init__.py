"""Routing between brokers, without I/O: the multicasting layer of D-DBR.

Ji et al. 2013, "Towards Scalable Publish/Subscribe Systems". In reading order: `messages`, `overlay`
(topology and shortest paths), `links`, `multicast`, `checking`. The paper's brokers as machines, with their
matching layer (FBR, D-DBR, MERC), are in `lab/`: in the service, Spark matches (`gateway/federation/`).
"""
