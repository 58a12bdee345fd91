"""The description of the HTTP interface, written by hand; tests hold it against the routes."""
