"""Delivery of matches and events to waiting clients: runs the state machines of `fieldfare.delivery`."""
