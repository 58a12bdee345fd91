"""The tuner of the client's requests: how many events in one, and how many requests in flight.

The paper's tuner, and others with its interface, are in lab/ (``fieldfare_lab.publishing``).
"""
