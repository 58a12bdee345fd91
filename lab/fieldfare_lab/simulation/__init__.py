"""Discrete-event simulation (SimPy) of the machines that the service and Spark drive in earnest."""
