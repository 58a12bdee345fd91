"""E-StreamHub's hosts as the paper has them: slices with states of their own, and a predictive enforcer.

The service's hosts are executors (``fieldfare.elasticity.executor_hosts``), whose slices are files; manager
and enforcer are the same.

    operators.py  III   access points, matchers and exit points: how a slice processes its inputs
    slices.py     IV.A  a slice: queues by origin, processed numbers, unacknowledged outputs
    host.py       IV.A  one host: runs slices, makes and receives copies of them, reports their costs
    messages.py   -     messages between slices, and a host's requests to its runtime
    forecast.py   -     beyond the paper: a day resembles yesterday, scaled by its beginning
"""
