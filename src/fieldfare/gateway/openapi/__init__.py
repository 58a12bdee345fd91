"""The OpenAPI description, by subject: requests from the types that check them, responses by hand."""
