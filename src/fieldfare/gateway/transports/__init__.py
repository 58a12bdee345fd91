"""How messages are carried to clients; what is due to whom is decided in `fieldfare.delivery`."""
