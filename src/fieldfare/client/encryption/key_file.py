"""A key in a file, under a passphrase: scrypt makes of it what AES-GCM encrypts seeds and matrices with."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fieldfare.client.encryption.attributes import NumberAttribute
from fieldfare.client.encryption.space_key import Epoch, SpaceKey
from fieldfare.client.encryption.vectors import Transform, dimensions_of
from fieldfare.client.errors import EncryptionError

FORMAT = "fieldfare space key 1"
SCRYPT_N, SCRYPT_N_MAX = 1 << 16, 1 << 20
"""What a try of a passphrase costs, 64 MiB and a tenth of a second; and what is taken from a file."""
PASSPHRASE_VARIABLE = "FIELDFARE_SPACE_PASSPHRASE"


def write_key(path: str | Path, key: SpaceKey, passphrase: str, *, replace: bool = False) -> None:
    """Write a key, readable by its owner only, whole or not at all; EncryptionError if the file is there.

    Attributes are in it as they are declared; seeds and matrices are encrypted.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise EncryptionError(f"{path} is there already, and a key that is lost cannot be had back")
    if not passphrase:
        raise EncryptionError("a key file needs a passphrase")
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    content = {
        "numbers": [[each.name, str(each.low), str(each.high), str(each.step)] for each in key.numbers],
        "texts": list(key.texts),
        "epochs": [_written(epoch) for epoch in key.epochs],
    }
    sealed = AESGCM(_stretched(passphrase, salt, SCRYPT_N)).encrypt(
        nonce, msgspec.json.encode(content), FORMAT.encode()
    )
    document = {
        "format": FORMAT,
        "scrypt_n": SCRYPT_N,
        **{name: base64.b64encode(raw).decode() for name, raw in
           (("salt", salt), ("nonce", nonce), ("sealed", sealed))},
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
    """Read a key; EncryptionError says what is wrong. Else FIELDFARE_SPACE_PASSPHRASE has the passphrase."""
    if passphrase is None:
        passphrase = os.environ.get(PASSPHRASE_VARIABLE, "")
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise EncryptionError(f"cannot read {path}: {error.strerror}") from None
    try:
        document: Any = msgspec.json.decode(raw)
        salt, nonce, sealed = (base64.b64decode(document[name]) for name in ("salt", "nonce", "sealed"))
        cost = int(document["scrypt_n"])
        if document["format"] != FORMAT or not 2 <= cost <= SCRYPT_N_MAX or cost & (cost - 1):
            raise ValueError
        stretched = _stretched(passphrase, salt, cost)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise EncryptionError(f"{path} is no key of an encrypted space") from None
    try:
        content: Any = msgspec.json.decode(AESGCM(stretched).decrypt(nonce, sealed, FORMAT.encode()))
    except (InvalidTag, ValueError):
        hint = f"set {PASSPHRASE_VARIABLE}" if not passphrase else "or the file was changed"
        raise EncryptionError(f"the passphrase does not open {path}: {hint}") from None
    numbers = [NumberAttribute.of(*each) for each in content["numbers"]]
    return SpaceKey.of(numbers, content["texts"], [_read(each, len(numbers)) for each in content["epochs"]])


def _written(epoch: Epoch) -> list[Any]:
    transform = epoch.transform
    matrices = [base64.b64encode(each.tobytes()).decode() for each in (transform.forward, transform.inverse)]
    return [epoch.number, epoch.seed.hex(), *matrices]


def _read(written: list[Any], numbers: int) -> Epoch:
    number, seed, *matrices = written
    size = dimensions_of(numbers)
    forward, inverse = (np.frombuffer(base64.b64decode(each)).reshape(size, size) for each in matrices)
    return Epoch(number, bytes.fromhex(seed), numbers, drawn=Transform.of(forward, inverse, numbers))


def _stretched(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(
        passphrase.encode("utf-8", "surrogateescape")
    )
