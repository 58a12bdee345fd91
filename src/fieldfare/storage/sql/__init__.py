"""The registry in a SQL database."""
