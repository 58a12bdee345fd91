"""Brokers of ``fieldfare.balancing`` with the set-ups of Cheung and Jacobsen 2006, in simulated time.

`offload` and `cards` are the paper's algorithms, with which joint plans are compared.
"""
