"""The delivery that a request is about."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from fieldfare.delivery.delivery import Delivery
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.upkeep.unused import Unused
from fieldfare.model import Subscription


@dataclass(frozen=True, slots=True)
class DeliveryFinder:
    """Finds deliveries by the path of a request."""

    subscriptions: Subscriptions
    pump: Pump
    unused: Unused

    async def check(self, request: HTTPConnection) -> Subscription:
        """Problem 404 for a subscription that there is not: before its body is read."""
        return await self.subscriptions.get(request.path_params["space"], request.path_params["id"])

    async def find(self, request: HTTPConnection) -> tuple[Subscription, Delivery]:
        """The delivery that a request is about; Problem 404 when there is no such subscription.

        Asked for when the body has been read: between this and what is done to the delivery nothing is
        awaited, or it might be another one's by then, or forgotten with its subscription.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        while True:
            subscription = await self.subscriptions.get(space, id)
            delivery = self.pump.delivery_of(subscription)
            if delivery is not None:
                self.unused.used(subscription.number)
                return subscription, delivery
            await self.pump.load(subscription)

    def held(self, delivery: Delivery, lease_s: float) -> None:
        """Somebody may work on what he was given for so long, and say nothing meanwhile."""
        self.unused.used(delivery.number, lease_s)

    async def save(self, subscription: Subscription, delivery: Delivery) -> tuple[int, ...]:
        """Save where a delivery stands; where that is. Problem 404 when it was deleted meanwhile."""
        saved = await self.pump.save(delivery)
        if delivery.deleted:
            raise deleted(subscription)
        return saved.cursor_keys


def deleted(subscription: Subscription) -> HttpProblem:
    """What those hear who were at a subscription when it went."""
    return HttpProblem(404, "unknown-subscription", f"The subscription {subscription.id!r} was deleted.")
