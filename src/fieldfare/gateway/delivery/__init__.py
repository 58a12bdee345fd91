"""Matches and events to those who wait: the runtime of the machines in `fieldfare.delivery`."""
