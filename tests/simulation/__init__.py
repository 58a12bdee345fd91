"""The service on a machine that is simulated, a seed at a time: see `simulation.simulate`."""
