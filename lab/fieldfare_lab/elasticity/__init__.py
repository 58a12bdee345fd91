"""E-StreamHub's hosts as described in the paper: slices with their own states, and a predictive enforcer.

The service's hosts are executors (``fieldfare.elasticity.executor_hosts``), whose slices are files; both use
the manager and the enforcer of ``fieldfare.elasticity``.

    operators.py  III   access points, matchers and exit points: how a slice processes its inputs
    slices.py     IV.A  a slice: queues by origin, processed numbers, unacknowledged outputs
    host.py       IV.A  one host: runs slices, makes and receives copies of them, reports their costs
    messages.py   -     messages between slices, and a host's requests to its runtime
    forecast.py   -     beyond the paper: a day resembles yesterday, scaled by its beginning
"""
