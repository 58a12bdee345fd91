"""What experiments, benchmarks and tests need and no user of fieldfare does: it is in no wheel.

* ``workloads``: seeded filters and events, drawn from the distributions of the papers and of rivals;
* ``simulation``: simulated time (SimPy), a network that delays, loses, is cut and crashes, and the systems of
  the papers in it. The machines that run there are fieldfare's own;
* ``spark``: a log matched at several matchers, a Spark job a batch, forwarded by what the last one measured.
"""
