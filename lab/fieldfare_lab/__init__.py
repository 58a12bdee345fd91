"""Support for experiments, benchmarks and tests; not part of any wheel.

* ``workloads``: seeded filters and events, drawn from the distributions of the papers and of competitors;
* ``simulation``: simulated time (SimPy), a network with delays, losses, partitions and crashes, and the
  systems of the papers in it. The machines that run there are fieldfare's own;
* ``spark``: a log matched at several matchers, one Spark job per batch, forwarded by the last measurements.
"""
