"""Elasticity on Spark: executors that come and go, matchers that are asked to run where their slices are."""
