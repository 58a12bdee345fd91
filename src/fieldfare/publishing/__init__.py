"""Tuners of a publisher: events in a request, the time between requests, and requests in flight.

`requests` is the tuner of the client's ``batch="auto"``. The paper's tuner (`autotuned`) and the windowed one
(`windowed`) poll a data store; they have one interface, `machine.PublishingMachine`. All of them are machines
without I/O, clock or randomness.
"""
