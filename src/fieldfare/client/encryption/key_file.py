"""Key files, protected by a passphrase: scrypt derives the AES-GCM key that encrypts the content."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fieldfare.client.credentials import PASSPHRASE_VARIABLE
from fieldfare.client.encryption.attributes import NumberAttribute
from fieldfare.client.encryption.space_key import SCHEME, Epoch, SpaceKey
from fieldfare.client.errors import EncryptionError

FORMATS = {"fieldfare space key 1": 1, f"fieldfare space key {SCHEME}": SCHEME}
"""Formats of key files, and the scheme of the epochs in each."""
SCRYPT_N, SCRYPT_N_MAX = 1 << 16, 1 << 20
"""Cost N of scrypt for a new file (64 MiB and a tenth of a second per attempt); maximum read from a file."""


def write_key(path: str | Path, key: SpaceKey, passphrase: str, *, replace: bool = False) -> None:
    """Write a key file atomically, readable by its owner only; EncryptionError if it exists.

    The content (declared attributes, seeds and matrices) is encrypted. ``replace`` overwrites a file.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise EncryptionError(f"{path} exists already; it is kept, as a lost key cannot be restored")
    if not passphrase:
        raise EncryptionError("a key file needs a passphrase")
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    content = {
        "numbers": [[each.name, str(each.low), str(each.high), str(each.step)] for each in key.numbers],
        "texts": list(key.texts),
        "epochs": [_written(epoch) for epoch in key.epochs],
    }
    file_format = next(name for name, scheme in FORMATS.items() if scheme == key.epoch.scheme)
    encrypted = AESGCM(_stretched(passphrase, salt, SCRYPT_N)).encrypt(
        nonce, msgspec.json.encode(content), file_format.encode()
    )
    document = {
        "format": file_format,
        "scrypt_n": SCRYPT_N,
        **{name: base64.b64encode(raw).decode() for name, raw in
           (("salt", salt), ("nonce", nonce), ("sealed", encrypted))},
    }  # fmt: skip
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Have names outlast a power failure: what is encrypted with a key may, too."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_key(path: str | Path, passphrase: str | None = None) -> SpaceKey:
    """Read a key file; EncryptionError if it is not valid, or not opened by the passphrase.

    The default passphrase is FIELDFARE_SPACE_PASSPHRASE.
    """
    if passphrase is None:
        passphrase = os.environ.get(PASSPHRASE_VARIABLE, "")
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise EncryptionError(f"cannot read {path}: {error.strerror}") from None
    try:
        document: Any = msgspec.json.decode(raw)
        salt, nonce, encrypted = (base64.b64decode(document[name]) for name in ("salt", "nonce", "sealed"))
        cost = int(document["scrypt_n"])
        file_format = str(document["format"])
        if file_format not in FORMATS or not 2 <= cost <= SCRYPT_N_MAX or cost & (cost - 1):
            raise ValueError
        stretched = _stretched(passphrase, salt, cost)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise EncryptionError(f"{path} is not a key file of an encrypted space") from None
    try:
        content: Any = msgspec.json.decode(AESGCM(stretched).decrypt(nonce, encrypted, file_format.encode()))
    except (InvalidTag, ValueError):
        hint = f"set {PASSPHRASE_VARIABLE}" if not passphrase else "or the file was changed"
        raise EncryptionError(f"the passphrase does not open {path}: {hint}") from None
    numbers = [NumberAttribute.of(*each) for each in content["numbers"]]
    epochs = [_read(each, numbers, FORMATS[file_format]) for each in content["epochs"]]
    return SpaceKey.of(numbers, content["texts"], epochs)


def _written(epoch: Epoch) -> list[Any]:
    transform = epoch.transform
    matrices = [base64.b64encode(each.tobytes()).decode() for each in (transform.forward, transform.inverse)]
    return [epoch.number, epoch.seed.hex(), *matrices]


def _read(written: list[Any], numbers: Sequence[NumberAttribute], scheme: int) -> Epoch:
    number, seed, *matrices = written
    epoch = Epoch(number, bytes.fromhex(seed), tuple(each.steps for each in numbers), scheme)
    size = epoch.dimensions
    forward, inverse = (np.frombuffer(base64.b64decode(each)).reshape(size, size) for each in matrices)
    return replace(epoch, drawn=(forward, inverse))


def _stretched(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(
        passphrase.encode("utf-8", "surrogateescape")
    )
