"""Elasticity on Spark: executors that come and go, and matchers' tasks that run where their slices are."""
