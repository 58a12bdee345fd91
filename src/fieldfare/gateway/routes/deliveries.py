"""Lookup of the delivery that a request names."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from fieldfare.delivery.delivery import Delivery
from fieldfare.gateway.admission.tickets import SUBSCRIPTION, invalid_ticket
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.maintenance.unused import Unused
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import Subscription


@dataclass(frozen=True, slots=True)
class DeliveryFinder:
    """Lookup of deliveries by the path of a request."""

    subscriptions: Subscriptions
    deliveries: DeliveryService
    unused: Unused

    async def check(self, request: HTTPConnection, *, for_letters: bool = False) -> Subscription:
        """Return a request's subscription, before its body is read.

        Raise Problem 404 if it is unknown, and 401 if the request's ticket is for an earlier one.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        subscription = await self.subscriptions.get(space, id, for_letters=for_letters)
        if request.scope.get(SUBSCRIPTION, subscription.number) != subscription.number:
            raise invalid_ticket()
        return subscription

    async def find(
        self, request: HTTPConnection, *, for_letters: bool = False
    ) -> tuple[Subscription, Delivery]:
        """Return the subscription and delivery of a request; raise Problem 404 for an unknown subscription.

        Call this after reading the body, and await nothing between this and using the delivery: meanwhile it
        could be replaced, or deleted with its subscription.
        """
        subscription, delivery = await self.look(request, for_letters=for_letters)
        self.unused.used(subscription.number)
        return subscription, delivery

    async def look(
        self, request: HTTPConnection, *, for_letters: bool = False
    ) -> tuple[Subscription, Delivery]:
        """Like `find`, but this is no use of the subscription: it may expire as unused.

        With ``for_letters``, it may have moved to another broker: its dead letters stay.
        """
        while True:
            subscription = await self.check(request, for_letters=for_letters)
            delivery = self.deliveries.delivery_of(subscription)
            if delivery is not None:
                return subscription, delivery
            await self.deliveries.load(subscription)

    def mark_used(self, delivery: Delivery, lease_s: float) -> None:
        """Count the subscription as used for ``lease_s`` seconds, while a client processes messages."""
        self.unused.used(delivery.number, lease_s)

    async def save(self, subscription: Subscription, delivery: Delivery) -> tuple[int, ...]:
        """Save a delivery's cursor and return it; raise Problem 404 if it was deleted meanwhile.

        If the subscription has moved meanwhile, what was saved may have settled its last message here.
        """
        saved = await self.deliveries.save(delivery)
        if delivery.deleted and not delivery.moved:
            raise deleted(subscription)
        return saved.cursor_keys


def deleted(subscription: Subscription) -> HttpProblem:
    """Return the problem for requests in progress on a subscription that was deleted."""
    return HttpProblem(404, "unknown-subscription", f"The subscription {subscription.id!r} was deleted.")
