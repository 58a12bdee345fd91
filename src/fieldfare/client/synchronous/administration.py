# Made from client/asynchronous/administration.py by `make client`: change it there.
"""The client's calls for operators: spaces, quotas, keys, brokers, quarantined records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fieldfare.client import backlogs, figures, moving, protocol
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption
from fieldfare.client.protocol import ApiCall, Result
from fieldfare.client.records import KeyInfo, NewKey
from fieldfare.model import SpaceBacklog


class Administration(ABC):
    """The part of a client that administers a service."""

    space: str

    def create_space(self, name: str, *, encrypted: Encryption = NO_ENCRYPTION) -> None:
        """Create a space; with a key, an encrypted space, which accepts only what that key encrypted."""
        self._perform(protocol.create_space(name, encrypted.declaration()))

    def delete_space(self, name: str) -> None:
        """Delete a space with its subscriptions, dead letters, keys and quotas. It cannot be undone."""
        self._perform(protocol.delete_space(name))

    def spaces(self) -> list[str]:
        """Return the names of all spaces."""
        return self._perform(protocol.list_spaces())

    def quotas(self, space: str | None = None) -> dict[str, Any]:
        """Return the quotas of a space (``limits``) and its usage (``used``); default: the client's space."""
        return self._perform(protocol.read_quotas(space or self.space))

    def set_quotas(self, space: str, quotas: Mapping[str, float | None]) -> dict[str, Any]:
        """Set all quotas of a space and return those in force; requires a key with the right ``admin``.

        A quota that is None or not named gets the service's default; 0 means no bound.
        """
        return self._perform(protocol.set_quotas(space, quotas))

    def advertisement(self, space: str | None = None) -> dict[str, Any]:
        """Return the advertisement of a space at this site, and which other sites have confirmed it."""
        return self._perform(moving.get_advertisement(space or self.space))

    def set_advertisement(self, space: str, filter: Any, dialect: str = "sql") -> dict[str, Any]:
        """State the advertisement of a space at this site; requires a key with the right ``admin``.

        Other events are refused here, and other sites send only the filters that can match it.

        Parameters
        ----------
        space : str
            The space.
        filter : str or JSON value or None
            The filter that all events match; None for all events.
        dialect : str
            The filter's dialect.
        """
        return self._perform(moving.set_advertisement(space, filter, dialect))

    def stats(self) -> dict[str, Any]:
        """Return the service's current figures: log, lag, rates, latency."""
        return self._perform(figures.stats())

    def pipeline(self) -> dict[str, Any]:
        """Return what the pipeline does, its index, the costliest spaces, its slices, and the processes."""
        return self._perform(figures.pipeline())

    def trace(self, seconds: float = 5.0, space: str | None = None) -> dict[str, Any]:
        """Return when records published in the next seconds passed each step to their delivery.

        Parameters
        ----------
        seconds
            Duration, at most 60 s.
        space
            Trace only the records of this space.

        Returns
        -------
        dict
            ``records``: a list with each record's ``position``, ``space``, ``events``, and ``steps``, which
            are milliseconds since its request was received.
        """
        return self._perform(figures.trace(seconds, space))

    def space_backlog(self, space: str | None = None) -> SpaceBacklog:
        """Return the sums of all backlogs of a space; default: the client's space."""
        return self._perform(backlogs.get_space_backlog(space or self.space))

    def backlogs(self, limit: int = 10) -> dict[str, Any]:
        """Return the ``spaces`` and ``subscriptions`` with the greatest backlogs, and the ``total``."""
        return self._perform(backlogs.get_backlogs(limit))

    def brokers(self) -> dict[str, Any]:
        """Return the state of the service's links to other brokers, and what it has exchanged with each."""
        return self._perform(protocol.brokers())

    def remove_broker(self, name: str) -> None:
        """Remove a broker that is gone for good: nothing is kept for it, and all others refuse it."""
        self._perform(protocol.remove_broker(name))

    def leave(self, *, force: bool = False) -> dict[str, Any]:
        """Begin to leave the sites in good order; return how far that is. It goes on by itself.

        Parameters
        ----------
        force : bool
            Leave even if other brokers can then no longer reach each other.
        """
        return self._perform(moving.leave(force))

    def get_leave(self) -> dict[str, Any]:
        """Return whether the broker is leaving, and what it waits for."""
        return self._perform(moving.get_leave())

    def stay(self) -> dict[str, Any]:
        """Cancel leaving; subscriptions count again at all other brokers, from one place on."""
        return self._perform(moving.stay())

    def move_subscription(self, id: str, to: str) -> dict[str, Any]:
        """Begin to move a subscription to another broker; return the state of the move."""
        return self._perform(moving.move_subscription(self.space, id, to))

    def get_balance(self, *, drain: bool = False) -> dict[str, Any]:
        """Return the loads of all brokers, and what this one would do about its own, or to be drained."""
        return self._perform(moving.get_balance(drain))

    def balance(self, *, drain: bool = False) -> dict[str, Any]:
        """Begin the moves that `get_balance` shows; they go on by themselves."""
        return self._perform(moving.balance(drain))

    def get_move(self, id: str) -> dict[str, Any]:
        """Return how far the move of a subscription is; ApiError (404) if it has not been moved."""
        return self._perform(moving.get_move(self.space, id))

    def quarantine(self) -> list[dict[str, Any]]:
        """Return the quarantined records (matching them failed), oldest first, with the reasons."""
        return self._perform(protocol.list_quarantine())

    def retry_quarantined(self, position: str) -> dict[str, Any]:
        """Publish the events of a quarantined record again; return their new place. May be repeated."""
        return self._perform(protocol.retry_quarantined(position))

    # Keys

    def create_key(self, rights: Sequence[str], *, space: str | None = None, note: str = "") -> NewKey:
        """Create an API key. The secret itself (``key``) is in this result only and cannot be read later.

        Parameters
        ----------
        rights : sequence of str
            "publish", "subscribe", "manage" apply to a space, "watch", "broker", "admin" to the service.
        space : str, optional
            The space that the rights apply to; required for "publish", "subscribe" and "manage".
        note : str
            A description of the key's purpose.
        """
        return self._perform(protocol.create_key(rights, space, note))

    def api_keys(self) -> list[KeyInfo]:
        """Return the API keys that this client's key may manage."""
        return self._perform(protocol.list_keys())

    def revoke_key(self, id: str) -> None:
        """Revoke an API key and close its open connections; ApiError (404) if it does not exist."""
        self._perform(protocol.revoke_key(id))

    @abstractmethod
    def _perform(self, call: ApiCall[Result]) -> Result:
        """Send a request, and return the result that its answer holds."""
