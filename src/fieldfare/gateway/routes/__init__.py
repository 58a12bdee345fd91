"""The HTTP API's routes: request handlers by path."""
