"""Brokers of ``fieldfare.balancing`` with the set-ups of Cheung and Jacobsen 2006, in simulated time."""
