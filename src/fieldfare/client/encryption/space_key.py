"""The key of an encrypted space: events and filters out, events back in."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from fieldfare.client.encryption.vectors import SPREAD, Transform, Vectors, dimensions_of
from fieldfare.client.errors import EncryptionError
from fieldfare.client.records import NewSubscription, SubscriptionInfo
from fieldfare.filters import FilterError
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.values import ABSENT

SEALED_TYPE = "fieldfare.aspe.1"
SEALED_SOURCE = "/encrypted"
DIALECT = "aspe"
SEED_BYTES = 32
NONCE_BYTES = 12
TOKEN_BYTES = 16
NAME_BYTES = 6
EPOCHS_MAX = 8
SEALED_AT_ONCE = 1000
"""So many filters' rows are multiplied together."""

_event_encoder = msgspec.json.Encoder()
_any = msgspec.json.Decoder()


@dataclass(frozen=True, eq=False)
class Epoch:
    """What one seed gives.

    Attributes
    ----------
    drawn
        Its matrices, where they were drawn before. Another machine's arithmetic could draw others that differ
        in their last digits, and a filter of the one must meet an event of the other.
    """

    number: int
    seed: bytes
    numbers: int
    spread: float = SPREAD
    drawn: Transform | None = None

    @cached_property
    def transform(self) -> Transform:
        if self.drawn is not None:
            return self.drawn
        stream = Cipher(algorithms.ChaCha20(self._derive(b"matrix"), bytes(16)), None).encryptor()
        return Transform.draw(
            self.numbers, lambda count: _from_bits(stream.update(bytes(8 * count))), self.spread
        )

    @cached_property
    def payload(self) -> AESGCM:
        return AESGCM(self._derive(b"payload"))

    @cached_property
    def _mac(self) -> hmac.HMAC:
        return hmac.HMAC(self._derive(b"token"), hashes.SHA256())

    def token(self, name: str, text: str) -> str:
        """What stands for a text of an attribute."""
        return _text(
            self._digest(b"\0" + name.encode() + b"\0" + text.encode("utf-8", "surrogatepass"))[:TOKEN_BYTES]
        )

    def name_of(self, name: str) -> str:
        """What stands for an attribute."""
        return self._digest(b"\1" + name.encode())[:NAME_BYTES].hex()

    def seal(self, content: bytes, purpose: bytes) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return _text(nonce + self.payload.encrypt(nonce, content, self._bound(purpose)))

    def open(self, sealed: str, purpose: bytes) -> bytes:
        """What was sealed; EncryptionError if it was not, or was changed."""
        try:
            raw = base64.b64decode(sealed, validate=True)
            return self.payload.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], self._bound(purpose))
        except (InvalidTag, ValueError):
            raise EncryptionError(
                "what was to be decrypted was not encrypted with this key, or was changed"
            ) from None

    def _bound(self, purpose: bytes) -> bytes:
        return b"fieldfare aspe 1 %s %d" % (purpose, self.number)

    def _digest(self, content: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(content)
        return mac.finalize()

    def _derive(self, purpose: bytes) -> bytes:
        return HKDF(hashes.SHA256(), 32, None, b"fieldfare aspe 1 " + purpose).derive(self.seed)


@dataclass(frozen=True, eq=False)
class SpaceKey:
    """The key of an encrypted space; who has it reads everything there. Made by `generate` or `read_key`.

    Attributes
    ----------
    numbers, texts
        The attributes that filters may name.
    epochs
        The newest last: events are published with that one, filters are sent for all.
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
        """A new key.

        Parameters
        ----------
        numbers : mapping from name to (low, high, step)
            The attributes that are numbers, as filters name them: ``{"data.price": (0, 500, "0.01")}``.
        texts : iterable of str
            Those that are texts.

        Raises
        ------
        EncryptionError
            An attribute is declared twice, or has more steps than a key can tell apart.
        """
        if isinstance(numbers, Mapping):
            numbers = [NumberAttribute.of(name, *grid) for name, grid in numbers.items()]
        declared = tuple(numbers)
        return cls.of(declared, tuple(texts), [Epoch(1, secrets.token_bytes(SEED_BYTES), len(declared))])

    @classmethod
    def of(
        cls, numbers: Sequence[NumberAttribute], texts: Sequence[str], epochs: Sequence[Epoch]
    ) -> SpaceKey:
        """The key that has these epochs."""
        names = [path_of(name) for name in (*(each.name for each in numbers), *texts)]
        if len(set(names)) < len(names):
            raise EncryptionError("an attribute is declared twice")
        if not names:
            raise EncryptionError("a key declares at least one attribute")
        key = cls(tuple(numbers), tuple(texts), tuple(epochs))
        for epoch in key.epochs:
            epoch.transform.check([each.steps for each in key.numbers])
        return key

    @property
    def epoch(self) -> Epoch:
        """The one that events are published with."""
        return self.epochs[-1]

    def rotated(self) -> SpaceKey:
        """The same with a new epoch beside those that there are."""
        if len(self.epochs) >= EPOCHS_MAX:
            raise EncryptionError(f"a key has at most {EPOCHS_MAX} epochs: drop the oldest")
        newest = Epoch(self.epoch.number + 1, secrets.token_bytes(SEED_BYTES), len(self.numbers))
        return self.of(self.numbers, self.texts, [*self.epochs, newest])

    def without_old(self) -> SpaceKey:
        """The same with its newest epoch only."""
        return replace(self, epochs=self.epochs[-1:])

    def declaration(self) -> dict[str, Any]:
        """What the service is told of the space."""
        return {"library": DIALECT, "dimensions": dimensions_of(len(self.numbers))}

    # Events

    def seal_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Events, each a line of JSON, encrypted; EncryptionError names the first that cannot be."""
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
        sealed = []
        for line, (_, texts, expiry), vector in zip(lines, events, vectors, strict=True):
            data = {
                "e": epoch.number,
                "v": _text(vector.tobytes()),
                "t": {names[name]: epoch.token(name, text) for name, text in texts.items()},
                "c": epoch.seal(line, b"event"),
            }
            outer = {
                "specversion": "1.0",
                "id": secrets.token_hex(16),
                "source": SEALED_SOURCE,
                "type": SEALED_TYPE,
            }
            sealed.append(_event_encoder.encode(outer | expiry | {"data": data}))
        return sealed

    def open_line(self, raw: bytes) -> bytes:
        """An event as it was published; EncryptionError if it was not encrypted with this key."""
        event = decode_event(raw)
        data = event.get("data")
        if (
            event.get("type") != SEALED_TYPE
            or not isinstance(data, dict)
            or not isinstance(data.get("c"), str)
        ):
            raise EncryptionError(
                "an event of this space is not encrypted: nobody with its key has published it"
            )
        return self._epoch(data.get("e")).open(data["c"], b"event")

    def _read(self, line: bytes) -> tuple[list[int], dict[str, str], dict[str, Any]]:
        """What an event is matched by: the places of its numbers, its texts; and when it expires."""
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
        """A subscription with its filter encrypted; EncryptionError, with a hint, if it cannot be."""
        return next(self.seal_filters([new]))

    def seal_filters(self, new: Iterable[NewSubscription]) -> Iterator[NewSubscription]:
        """The same for many, which takes less for each."""
        left = iter(new)
        while some := list(islice(left, SEALED_AT_ONCE)):
            yield from self._seal_filters(some)

    def _seal_filters(self, new: Sequence[NewSubscription]) -> list[NewSubscription]:
        plain = [each for each in new if each.dialect != DIALECT]
        asked = [self._asked(each) for each in plain]
        flat = [alternative for alternatives in asked for alternative in alternatives]
        of_epochs = [_alternatives(epoch, flat, self._steps) for epoch in self.epochs]
        ends, sealed = 0, []
        for each, alternatives in zip(plain, asked, strict=True):
            begin, ends = ends, ends + len(alternatives)
            kept = msgspec.json.encode({"filter": each.filter, "dialect": each.dialect})
            any_of = [one for made in of_epochs for one in made[begin:ends]]
            wire = {"any": any_of, "e": self.epoch.number, "c": self.epoch.seal(kept, b"filter")}
            sealed.append(replace(each, filter=msgspec.json.encode(wire).decode(), dialect=DIALECT))
        found = iter(sealed)
        return [each if each.dialect == DIALECT else next(found) for each in new]

    def _asked(self, new: NewSubscription) -> list[Alternative]:
        try:
            return alternatives_of(new.filter, new.dialect, self.numbers, self.texts)
        except FilterError as error:
            raise EncryptionError(str(error)) from None

    def open_filter(self, info: SubscriptionInfo) -> SubscriptionInfo:
        """A subscription with the filter as it was written; one that cannot be decrypted stays as it is."""
        if info.dialect != DIALECT:
            return info
        try:
            sealed = _any.decode(info.filter)
            kept = _any.decode(self._epoch(sealed["e"]).open(sealed["c"], b"filter"))
            return replace(info, filter=kept["filter"], dialect=kept["dialect"])
        except (EncryptionError, msgspec.DecodeError, KeyError, TypeError):
            return info

    def _epoch(self, number: Any) -> Epoch:
        for epoch in self.epochs:
            if epoch.number == number:
                return epoch
        raise EncryptionError(
            f"this key has no epoch {number!r}: it is older than what it is to open, or newer"
        )


def _alternatives(epoch: Epoch, asked: Sequence[Alternative], steps: Any) -> list[dict[str, Any]]:
    """Alternatives as they are sent; the rows of each in random order."""
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
    """Random numbers of [0, 1), from the system's generator."""
    return _from_bits(secrets.token_bytes(8 * count))


def _from_bits(raw: bytes) -> Vectors:
    found: Vectors = (np.frombuffer(raw, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
