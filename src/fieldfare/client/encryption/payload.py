"""XAES-256-GCM (c2sp.org/XAES-256-GCM): AES-256-GCM with random nonces long enough never to repeat.

AES-GCM's random nonces of 96 bits allow 2³² messages per key. These nonces have 192 bits: the first half
selects a key, derived by NIST SP 800-108 with CMAC, and the second half is the AES-GCM nonce under that key.
Every OpenSSL has both.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFCMAC, CounterLocation, Mode

HALF_BYTES = 12
DERIVED_MAX = 64
"""Number of derived keys in the cache: messages encrypted together are mostly decrypted together."""


class ExtendedNonceCipher:
    """Encrypts messages, each prefixed with its nonce, and decrypts them; the key has 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._derived = lru_cache(DERIVED_MAX)(self._derive)

    def seal(self, contents: Sequence[bytes], bound: bytes) -> list[bytes]:
        """Encrypt messages, and authenticate `bound` with each. Their nonces share the first half."""
        first = secrets.token_bytes(HALF_BYTES)
        second = secrets.token_bytes(HALF_BYTES * len(contents))
        return [
            self.seal_with(first + second[at : at + HALF_BYTES], content, bound)
            for at, content in zip(range(0, len(second), HALF_BYTES), contents, strict=True)
        ]

    def seal_with(self, nonce: bytes, content: bytes, bound: bytes) -> bytes:
        """Encrypt one message with a nonce that is used only once."""
        first, second = nonce[:HALF_BYTES], nonce[HALF_BYTES:]
        return nonce + self._derived(first).encrypt(second, content, bound)

    def open(self, encrypted: bytes, bound: bytes) -> bytes:
        """Decrypt a message; InvalidTag or ValueError if it was encrypted with another key, or changed."""
        first, second = encrypted[:HALF_BYTES], encrypted[HALF_BYTES : 2 * HALF_BYTES]
        return self._derived(first).decrypt(second, encrypted[2 * HALF_BYTES :], bound)

    def _derive(self, first: bytes) -> AESGCM:
        place = CounterLocation.BeforeFixed
        kdf = KBKDFCMAC(AES, Mode.CounterMode, 32, 2, None, place, None, None, b"X\0" + first)
        return AESGCM(kdf.derive(self._key))
