"""E-StreamHub, Barazzutti et al. 2014, in simulated time: what section VI measures, at the paper's scale.

The manager and the enforcer are the machines of ``fieldfare.elasticity``. Slices are not: at 40 million
filtering operations a second they are jobs with a cost (``engine``), and hosts answer the manager for them
(``cluster``).
"""
