"""Slices at several matchers: the pipeline's operators in tasks of their own, with shuffles in between."""
