"""The console's files, which browsers get as they are: `fieldfare.gateway.routes.console` serves them."""
