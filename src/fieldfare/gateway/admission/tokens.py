"""Tokens (JWT, RFC 7519), signed by an issuer that the service trusts.

    bytes within bounds ─▶ digest known? ─▶ header names a key ─▶ signature, issuer, audience, times (PyJWT)
                                                                          │
    rights by space, until it expires, its key goes, or a space of it ◀───┘

An error says more than "not valid" only if the token's signature is valid. Neither a token nor its content is
in any log or response.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jwt
from jwt.utils import base64url_decode

from fieldfare.gateway.admission.callers import OF_SPACES, Caller, Right, UnknownSigner, unauthorised
from fieldfare.gateway.admission.token_keys import Signer, Signers
from fieldfare.gateway.problems import HttpProblem

TOKEN_MAX_BYTES = 8 << 10
HELD_MAX = 10_000
SUBJECT_MAX_BYTES = 255

_FORM = re.compile(rb"[A-Za-z0-9_-]{2,2048}\.[A-Za-z0-9_-]{2,8192}\.[A-Za-z0-9_-]{2,2048}")
_TYPES = frozenset((None, "jwt", "at+jwt", "application/at+jwt"))
_RIGHTS = {right.value: right for right in Right}
_NEEDED = ("exp", "iss", "aud", "sub")
_SAID: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, "This token has expired."),
    (jwt.ImmatureSignatureError, "This token is not valid yet; perhaps a clock is wrong."),
    (jwt.InvalidAudienceError, "This token is not for this service: its claim aud names another."),
    (
        jwt.InvalidIssuerError,
        "This token is from an issuer that this service does not trust: its claim iss is another.",
    ),
)
_ODD = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class TokenCaller(Caller):
    """The caller of a request with a token.

    Attributes
    ----------
    signer : Signer
        The key that signed the token.
    until_wall_s, until_s : float
        When the token expires, by the wall clock and by a monotonic clock; the earlier one counts. A wall
        clock that is set back must not extend a token.
    """

    __slots__ = ("__weakref__", "_has_space", "signer", "until_s", "until_wall_s")

    def __init__(
        self,
        id: str,
        grants: Mapping[str | None, Iterable[Right]],
        signer: Signer,
        until_wall_s: float,
        until_s: float,
        has_space: Callable[[str], bool],
    ) -> None:
        super().__init__(id, grants)
        self._has_space = has_space
        self.signer = signer
        self.until_wall_s = until_wall_s
        self.until_s = until_s

    def may(self, right: Right, space: str | None = None) -> bool:
        return super().may(right, space) and self._is_real(space)

    def may_know(self, space: str) -> bool:
        return super().may_know(space) and self._is_real(space)

    def _is_real(self, space: str | None) -> bool:
        """Return whether the space exists: a token's names are unchecked, and unknown spaces grant
        nothing.
        """
        return self.is_admin or space is None or self._has_space(space)

    def is_over(self, wall_s: float, now_s: float) -> bool:
        """Return whether the token has expired."""
        return wall_s >= self.until_wall_s or now_s >= self.until_s


class WebTokens:
    """Finds the caller of a token.

    Parameters
    ----------
    issuer, audience
        The trusted issuer, and the audience that tokens must have.
    has_space
        Returns whether a space exists.
    claim
        The claim with the rights: words such as ``publish:SPACE``, separated by spaces or as a list.
    leeway_s
        Maximum difference between the issuer's clock and this one, in seconds.
    ended
        Deletion time of deleted spaces, by name, in milliseconds since 1970: a token issued before has no
        rights in a later space of that name.
    wall_s, monotonic_s
        The clocks.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        has_space: Callable[[str], bool],
        claim: str = "scope",
        leeway_s: float = 30.0,
        ended: Mapping[str, int] | None = None,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._audience = audience
        self._has_space = has_space
        self._claim = claim
        self._leeway_s = leeway_s
        self._ended_ms = dict(ended or {})
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._signers: Signers | None = None
        self._held: OrderedDict[bytes, TokenCaller] = OrderedDict()
        # Includes callers that are no longer held but have open requests.
        self._known: weakref.WeakSet[TokenCaller] = weakref.WeakSet()

    def __reduce__(self) -> NoReturn:
        raise TypeError("the known tokens cannot be pickled")

    def find(self, token: bytes) -> Caller:
        """Return the caller of a token.

        Raise Problem 401 if the token is not valid, UnknownSigner if its key is unknown.
        """
        if len(token) > TOKEN_MAX_BYTES or not _FORM.fullmatch(token):
            raise _refused()
        digest = hashlib.sha256(token).digest()
        caller = self._held.get(digest)
        if caller is not None:
            if not caller.has_ended and not caller.is_over(self._wall_s(), self._monotonic_s()):
                return caller
            del self._held[digest]
        caller = self._verified(token)
        self._held[digest] = caller
        self._known.add(caller)
        if len(self._held) > HELD_MAX:
            self._held.popitem(last=False)
        return caller

    def use(self, signers: Signers) -> None:
        """Replace the keys, and end the callers, and their open streams, whose key is removed."""
        self._signers = signers
        standing = {signer.thumb for signer in signers.values()}
        self._end(lambda caller: caller.signer.thumb not in standing)

    def end_space(self, name: str, ended_ms: int) -> None:
        """End the callers with rights in a deleted space, and ignore those rights from now on."""
        self._ended_ms[name] = ended_ms
        self._end(lambda caller: name in caller.grants)

    def sweep(self) -> None:
        """End the callers whose tokens have expired, and their open requests."""
        wall_s, now_s = self._wall_s(), self._monotonic_s()
        self._end(lambda caller: caller.is_over(wall_s, now_s))

    def _end(self, when: Callable[[TokenCaller], bool]) -> None:
        ending = [caller for caller in self._known if when(caller)]
        if not ending:
            return
        for caller in ending:
            caller.end()
        for digest in [digest for digest, caller in self._held.items() if caller.has_ended]:
            del self._held[digest]
        self._known = weakref.WeakSet(caller for caller in self._known if not caller.has_ended)

    def _verified(self, token: bytes) -> TokenCaller:
        try:
            header = json.loads(base64url_decode(token.partition(b".")[0]))
            kind, kid = header.get("typ"), header.get("kid")
            if (kind if kind is None else kind.lower()) not in _TYPES or not isinstance(kid, str | None):
                raise TypeError
        except (*_ODD, AttributeError):
            raise _refused() from None
        signer = self._signer(kid)
        try:
            claims = jwt.decode(
                token,
                signer.key,
                algorithms=list(signer.algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={"require": list(_NEEDED), "enforce_minimum_key_length": True},
            )
            left_s = float(claims["exp"]) + self._leeway_s - self._wall_s()
            grants = self._grants(claims)
            # An unpaired surrogate cannot be encoded, and raises ValueError.
            if not 1 <= len(claims["sub"].encode()) <= SUBJECT_MAX_BYTES:
                raise ValueError
        except jwt.MissingRequiredClaimError as error:
            raise _refused(f"This token lacks the claim {error.claim}.") from None
        except _ODD as error:
            found = (said for kind, said in _SAID if isinstance(error, kind))
            raise _refused(next(found, "This token is not valid.")) from None
        id = f"{claims['sub']}@{self._issuer}"
        until = (self._wall_s() + left_s, self._monotonic_s() + left_s)
        return TokenCaller(id, grants, signer, *until, self._has_space)

    def _signer(self, kid: str | None) -> Signer:
        """Return the key by its name alone: other hints of a header about keys are untrusted."""
        if self._signers is None:
            detail = "The token issuer's signing keys have not been loaded yet: try again later."
            raise UnknownSigner(503, "no-token-keys", detail, headers={"Retry-After": "5"})
        if kid is None and len(self._signers) == 1:
            return next(iter(self._signers.values()))
        signer = None if kid is None else self._signers.get(kid)
        if signer is None:
            refused = _refused()
            raise UnknownSigner(refused.status, refused.name, refused.detail, headers=refused.headers)
        return signer

    def _grants(self, claims: Mapping[str, Any]) -> dict[str | None, set[Right]]:
        """Return rights by space, with those in the service under None. Unknown words are ignored."""
        said = claims.get(self._claim, "")
        words = said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
        issued = claims.get("iat")
        grants: dict[str | None, set[Right]] = {}
        for word in words:
            name, _, space = str(word).partition(":")
            right = _RIGHTS.get(name)
            if right is None or (right in OF_SPACES) is not bool(space):
                continue
            ended_ms = self._ended_ms.get(space)
            if ended_ms is None or (
                issued is not None and (float(issued) - self._leeway_s) * 1000 > ended_ms
            ):
                grants.setdefault(space or None, set()).add(right)
        return grants


def _refused(detail: str = "This token is not valid.") -> HttpProblem:
    return unauthorised(detail, error="invalid_token")
