"""fieldfare: content-based publish/subscribe for very many subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fieldfare.client import (
        ApiError,
        AsyncClient,
        AutoBatching,
        BatchSettings,
        Client,
        ConnectionFailed,
        FieldfareError,
        Message,
        OutboxSettings,
        PublishError,
        QueueSettings,
        RetrySettings,
        SubscriptionInfo,
    )
    from fieldfare.model import DeliverySettings, Position, PushSettings

__all__ = [
    "ApiError",
    "AsyncClient",
    "AutoBatching",
    "BatchSettings",
    "Client",
    "ConnectionFailed",
    "DeliverySettings",
    "FieldfareError",
    "Message",
    "OutboxSettings",
    "Position",
    "PublishError",
    "PushSettings",
    "QueueSettings",
    "RetrySettings",
    "SubscriptionInfo",
    "__version__",
]


def __getattr__(name: str) -> object:
    # Imported at first access: Spark's workers import this package too, and need no HTTP client.
    if name in ("DeliverySettings", "Position", "PushSettings"):
        from fieldfare import model

        return getattr(model, name)
    if name in __all__:
        from fieldfare import client

        return getattr(client, name)
    raise AttributeError(f"module 'fieldfare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
