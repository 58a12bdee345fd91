"""The key of an encrypted space: encrypts events and filters, and decrypts them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fieldfare.client.encoding import decode_event
from fieldfare.client.encryption.attributes import MISSING, NumberAttribute, path_of
from fieldfare.client.encryption.conditions import Alternative, TextSet, alternatives_of
from fieldfare.client.encryption.curves import Curves, CurveTransform
from fieldfare.client.encryption.curves import dimensions_of as curve_dimensions
from fieldfare.client.encryption.payload import ExtendedNonceCipher
from fieldfare.client.encryption.vectors import SPREAD, Transform, Uniform, Vectors
from fieldfare.client.encryption.vectors import dimensions_of as first_dimensions
from fieldfare.client.errors import EncryptionError
from fieldfare.client.records import NewSubscription, SubscriptionInfo
from fieldfare.filters import FilterError
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.values import ABSENT

ENCRYPTED_TYPE = "fieldfare.aspe.1"
ENCRYPTED_SOURCE = "/encrypted"
DIALECT = "aspe"
SEED_BYTES = 32
NONCE_BYTES = 12
EXTENDED = "2."
"""Prefix of payloads under `ExtendedNonceCipher`; older ones, under AES-GCM, have no prefix."""
SCHEME = 2
"""The scheme of new keys: the vectors of `curves`. Existing keys of scheme 1 (`vectors`) keep it."""
TOKEN_BYTES = 16
NAME_BYTES = 6
EPOCHS_MAX = 8
ENCRYPTED_BATCH_SIZE = 1000
"""Number of filters whose rows are multiplied in one operation."""

_event_encoder = msgspec.json.Encoder()
_any = msgspec.json.Decoder()


@dataclass(frozen=True, eq=False)
class Epoch:
    """One generation of a space key: everything that is derived from one seed.

    Attributes
    ----------
    steps
        The number of steps of each number.
    scheme
        How vectors are made: `SCHEME`, or 1.
    drawn
        Its matrices, if they exist already. Another machine's arithmetic could generate matrices that differ
        in the last digits, and filters encrypted on one machine must match events encrypted on another.
    """

    number: int
    seed: bytes = field(repr=False)
    steps: tuple[int, ...]
    scheme: int = SCHEME
    drawn: tuple[Vectors, Vectors] | None = field(default=None, repr=False)

    @property
    def dimensions(self) -> int:
        return (first_dimensions if self.scheme == 1 else curve_dimensions)(len(self.steps))

    @cached_property
    def transform(self) -> Transform | CurveTransform:
        matrices, numbers = self.drawn, len(self.steps)
        if self.scheme == 1:
            if matrices is not None:
                return Transform.of(*matrices, numbers)
            return Transform.draw(numbers, self._stream(b"matrix"))
        curves = Curves.draw(self.steps, self._stream(b"curves"))
        if matrices is not None:
            return CurveTransform.of(curves, *matrices)
        return CurveTransform.draw(curves, self._stream(b"matrix"), SPREAD)

    def _stream(self, purpose: bytes) -> Uniform:
        cipher = Cipher(algorithms.ChaCha20(self._derive(purpose), bytes(16)), None).encryptor()
        return lambda count: _from_bits(cipher.update(bytes(8 * count)))

    @cached_property
    def payload(self) -> ExtendedNonceCipher:
        return ExtendedNonceCipher(self._derive(b"extended payload"))

    @cached_property
    def _first_payload(self) -> AESGCM:
        return AESGCM(self._derive(b"payload"))

    @cached_property
    def _mac(self) -> hmac.HMAC:
        return hmac.HMAC(self._derive(b"token"), hashes.SHA256())

    def token(self, name: str, text: str) -> str:
        """Return the token that stands for a text of an attribute."""
        return _text(
            self._digest(b"\0" + name.encode() + b"\0" + text.encode("utf-8", "surrogatepass"))[:TOKEN_BYTES]
        )

    def name_of(self, name: str) -> str:
        """Return the token that stands for an attribute's name."""
        return self._digest(b"\1" + name.encode())[:NAME_BYTES].hex()

    def seal(self, contents: Sequence[bytes], purpose: bytes) -> list[str]:
        """Encrypt contents, each separately."""
        return [EXTENDED + _text(each) for each in self.payload.seal(contents, self._bound(purpose))]

    def open(self, encrypted: str, purpose: bytes) -> bytes:
        """Decrypt a content of `seal`; EncryptionError if it was encrypted with another key, or changed."""
        try:
            raw = base64.b64decode(encrypted.removeprefix(EXTENDED), validate=True)
            if encrypted.startswith(EXTENDED):
                return self.payload.open(raw, self._bound(purpose))
            return self._first_payload.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], self._bound(purpose))
        except (InvalidTag, ValueError):
            raise EncryptionError("the content was not encrypted with this key, or was changed") from None

    def _bound(self, purpose: bytes) -> bytes:
        return b"fieldfare aspe %d %s %d" % (self.scheme, purpose, self.number)

    def _digest(self, content: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(content)
        return mac.finalize()

    def _derive(self, purpose: bytes) -> bytes:
        label = b"fieldfare aspe %d %s" % (self.scheme, purpose)
        return HKDF(hashes.SHA256(), 32, None, label).derive(self.seed)


@dataclass(frozen=True, eq=False)
class SpaceKey:
    """The key of an encrypted space, which decrypts everything in it. Created by `generate` or `read_key`.

    Attributes
    ----------
    numbers, texts
        The attributes that filters may use.
    epochs
        The key's epochs, newest last: events are encrypted with the newest, filters for all.
    """

    numbers: tuple[NumberAttribute, ...]
    texts: tuple[str, ...]
    epochs: tuple[Epoch, ...]

    is_on = True

    @classmethod
    def generate(
        cls,
        numbers: Mapping[str, tuple[Any, Any, Any]] | Iterable[NumberAttribute] = (),
        texts: Iterable[str] = (),
    ) -> SpaceKey:
        """Generate a new key.

        Parameters
        ----------
        numbers : mapping from name to (low, high, step)
            The number attributes, named as in filters: ``{"data.price": (0, 500, "0.01")}``.
        texts : iterable of str
            The text attributes.

        Raises
        ------
        EncryptionError
            No attribute is declared, one is declared twice, or one has more steps than a key can tell apart.
        """
        if isinstance(numbers, Mapping):
            numbers = [NumberAttribute.of(name, *grid) for name, grid in numbers.items()]
        declared = tuple(numbers)
        steps = tuple(each.steps for each in declared)
        return cls.of(declared, tuple(texts), [Epoch(1, secrets.token_bytes(SEED_BYTES), steps)])

    @classmethod
    def of(
        cls, numbers: Sequence[NumberAttribute], texts: Sequence[str], epochs: Sequence[Epoch]
    ) -> SpaceKey:
        """Return the key with these attributes and epochs."""
        names = [path_of(name) for name in (*(each.name for each in numbers), *texts)]
        if len(set(names)) < len(names):
            raise EncryptionError("an attribute is declared twice")
        if not names:
            raise EncryptionError("a key must declare at least one attribute")
        key = cls(tuple(numbers), tuple(texts), tuple(epochs))
        for epoch in key.epochs:
            epoch.transform.check([each.steps for each in key.numbers])
        return key

    @property
    def epoch(self) -> Epoch:
        """The newest epoch, which events are encrypted with."""
        return self.epochs[-1]

    def rotated(self) -> SpaceKey:
        """Return the key with a new epoch added, of the same scheme as the others."""
        if len(self.epochs) >= EPOCHS_MAX:
            raise EncryptionError(f"a key has at most {EPOCHS_MAX} epochs: drop the old ones")
        last = self.epoch
        newest = Epoch(last.number + 1, secrets.token_bytes(SEED_BYTES), last.steps, last.scheme)
        return self.of(self.numbers, self.texts, [*self.epochs, newest])

    def without_old(self) -> SpaceKey:
        """Return the key with its newest epoch only."""
        return replace(self, epochs=self.epochs[-1:])

    def declaration(self) -> dict[str, Any]:
        """Return the encryption parameters that the service needs to create the space."""
        return {"library": DIALECT, "dimensions": self.epoch.dimensions}

    # Events

    def seal_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Encrypt events, each a line of JSON; EncryptionError names the first that cannot be encrypted."""
        events = []
        for index, line in enumerate(lines):
            try:
                events.append(self._read(line))
            except (EncryptionError, ValueError) as error:
                at = f"event {index}: " if len(lines) > 1 else ""
                raise EncryptionError(f"{at}{error}") from None
        places = np.array([each[0] for each in events], np.int64).reshape(len(events), len(self.numbers))
        epoch = self.epoch
        vectors = epoch.transform.events(places, self._steps, random_numbers)
        names = {name: epoch.name_of(name) for name in self.texts}
        encrypted = []
        payloads = epoch.seal(lines, b"event")
        for payload, (_, texts, expiry), vector in zip(payloads, events, vectors, strict=True):
            data = {
                "e": epoch.number,
                "v": _text(vector.tobytes()),
                "t": {names[name]: epoch.token(name, text) for name, text in texts.items()},
                "c": payload,
            }
            outer = {
                "specversion": "1.0",
                "id": secrets.token_hex(16),
                "source": ENCRYPTED_SOURCE,
                "type": ENCRYPTED_TYPE,
            }
            encrypted.append(_event_encoder.encode(outer | expiry | {"data": data}))
        return encrypted

    def open_line(self, raw: bytes) -> bytes:
        """Decrypt an event; EncryptionError if it was not encrypted with this key."""
        event = decode_event(raw)
        data = event.get("data")
        if (
            event.get("type") != ENCRYPTED_TYPE
            or not isinstance(data, dict)
            or not isinstance(data.get("c"), str)
        ):
            raise EncryptionError("the event is not encrypted: it was published without the space's key")
        return self._epoch(data.get("e")).open(data["c"], b"event")

    def _read(self, line: bytes) -> tuple[list[int], dict[str, str], dict[str, Any]]:
        """Return the parts of an event for matching: places of its numbers, its texts, its expirytime."""
        event = decode_event(line)
        if not isinstance(event, dict):
            raise EncryptionError("an event is a JSON object")
        places = []
        for attribute, get in self._numbers:
            value = get(event)
            places.append(MISSING if value is None or value is ABSENT else attribute.place(value))
        texts = {}
        for name, get in self._texts:
            value = get(event)
            if value is None or value is ABSENT:
                continue
            if not isinstance(value, str):
                raise EncryptionError(f"{name} is declared as a text, and this is {str(value)[:40]!r}")
            texts[name] = value
        return places, texts, {name: event[name] for name in ("expirytime",) if name in event}

    @cached_property
    def _numbers(self) -> list[tuple[NumberAttribute, Callable[[Any], Any]]]:
        return [(each, event_getter(each.path)) for each in self.numbers]

    @cached_property
    def _texts(self) -> list[tuple[str, Callable[[Any], Any]]]:
        return [(name, event_getter(path_of(name))) for name in self.texts]

    @cached_property
    def _steps(self) -> Any:
        return np.array([each.steps for each in self.numbers], np.int64)

    # Filters

    def seal_filter(self, new: NewSubscription) -> NewSubscription:
        """Encrypt a subscription's filter; EncryptionError, with a hint, if it cannot be encrypted."""
        return next(self.seal_filters([new]))

    def seal_filters(self, new: Iterable[NewSubscription]) -> Iterator[NewSubscription]:
        """Encrypt the filters of many subscriptions, faster than one by one."""
        left = iter(new)
        while some := list(islice(left, ENCRYPTED_BATCH_SIZE)):
            yield from self._seal_filters(some)

    def _seal_filters(self, new: Sequence[NewSubscription]) -> list[NewSubscription]:
        plain = [each for each in new if each.dialect != DIALECT]
        asked = [self._asked(each) for each in plain]
        flat = [alternative for alternatives in asked for alternative in alternatives]
        of_epochs = [_alternatives(epoch, flat, self._steps) for epoch in self.epochs]
        kept = [msgspec.json.encode({"filter": each.filter, "dialect": each.dialect}) for each in plain]
        ends, encrypted = 0, []
        for each, alternatives, own in zip(plain, asked, self.epoch.seal(kept, b"filter"), strict=True):
            begin, ends = ends, ends + len(alternatives)
            any_of = [one for made in of_epochs for one in made[begin:ends]]
            wire = {"any": any_of, "e": self.epoch.number, "c": own}
            encrypted.append(replace(each, filter=msgspec.json.encode(wire).decode(), dialect=DIALECT))
        found = iter(encrypted)
        return [each if each.dialect == DIALECT else next(found) for each in new]

    def _asked(self, new: NewSubscription) -> list[Alternative]:
        try:
            return alternatives_of(new.filter, new.dialect, self.numbers, self.texts)
        except FilterError as error:
            raise EncryptionError(str(error)) from None

    def open_filter(self, info: SubscriptionInfo) -> SubscriptionInfo:
        """Decrypt a subscription's filter; one that cannot be decrypted stays as it is."""
        if info.dialect != DIALECT:
            return info
        try:
            encrypted = _any.decode(info.filter)
            kept = _any.decode(self._epoch(encrypted["e"]).open(encrypted["c"], b"filter"))
            return replace(info, filter=kept["filter"], dialect=kept["dialect"])
        except (EncryptionError, msgspec.DecodeError, KeyError, TypeError):
            return info

    def _epoch(self, number: Any) -> Epoch:
        for epoch in self.epochs:
            if epoch.number == number:
                return epoch
        raise EncryptionError(_epoch_is_missing(number, [each.number for each in self.epochs]))


def _epoch_is_missing(number: Any, present: Sequence[int]) -> str:
    """Return the error for an event or filter in another epoch than those ``present`` in the key."""
    if isinstance(number, int) and number > present[-1]:
        remedy = "get the newer key file, which the last `fieldfare keys space rotate` has written"
    elif isinstance(number, int) and number < present[0]:
        remedy = "use a copy of the key file from before `fieldfare keys space drop`"
    else:
        remedy = "use the key with which it was encrypted"
    return (
        f"the space's key has no epoch {number!r}, in which this event or filter was encrypted, but only"
        f" {', '.join(map(str, present))}: {remedy}"
    )


def _alternatives(epoch: Epoch, asked: Sequence[Alternative], steps: Any) -> list[dict[str, Any]]:
    """Encrypt alternatives for one epoch; the rows of each are in random order."""
    ranges = [run for each in asked for run in each.ranges]
    whose = np.repeat(np.arange(len(asked)), [len(each.ranges) for each in asked])
    rows, of = epoch.transform.rows(np.array(ranges, np.int64).reshape(-1, 3), steps, random_numbers)
    whose = whose[of]
    order = np.lexsort((random_numbers(len(whose)), whose))
    texts = [_text(row.tobytes()) for row in rows[order]]
    ends = np.cumsum(np.bincount(whose, minlength=len(asked))).tolist()
    return [
        {"e": epoch.number, "r": texts[begin:end], "t": [_token_set(epoch, one) for one in each.texts]}
        for each, begin, end in zip(asked, [0, *ends], ends, strict=False)
    ]


def _token_set(epoch: Epoch, asked: TextSet) -> list[Any]:
    return [
        epoch.name_of(asked.name),
        asked.but,
        sorted(epoch.token(asked.name, text) for text in asked.texts),
    ]


def random_numbers(count: int) -> Vectors:
    """Return random numbers in [0, 1) from the system's secure generator."""
    return _from_bits(secrets.token_bytes(8 * count))


def _from_bits(raw: bytes) -> Vectors:
    found: Vectors = (np.frombuffer(raw, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
