"""The library of filters that the service cannot read: docs/decisions/encrypted.md."""
