"""The library of encrypted filters; see docs/decisions/encrypted.md."""
