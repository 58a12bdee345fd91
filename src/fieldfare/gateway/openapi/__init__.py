"""The description of the HTTP interface: requests by the types that check them, responses by hand."""
