"""Transports carry messages to clients; `fieldfare.delivery` decides which messages to deliver."""
