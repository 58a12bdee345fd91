"""Brokers of ``fieldfare.routing`` at the scale of Ji et al. 2013, in simulated time."""
