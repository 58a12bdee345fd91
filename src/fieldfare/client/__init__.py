"""The Python client: `Client` and `AsyncClient`, with their records and errors."""

from fieldfare.client.asynchronous.client import AsyncClient
from fieldfare.client.asynchronous.publisher import AsyncPublisher
from fieldfare.client.asynchronous.subscriber import AsyncSubscriber
from fieldfare.client.auto_batching import AutoBatching
from fieldfare.client.batching import (
    BatchPolicy,
    BatchReport,
    BatchSettings,
    PollingPolicy,
    QueueSettings,
)
from fieldfare.client.dispatch import PublisherStats
from fieldfare.client.errors import (
    ApiError,
    ClientClosed,
    ConnectionFailed,
    DeliveryTimeout,
    FieldfareError,
    FlushTimeout,
    InvalidEvent,
    InvalidName,
    KeptInOutbox,
    OutboxError,
    OutboxFull,
    OutboxInUse,
    PublishError,
    QueueFull,
    Refusal,
    ServiceNotTrusted,
    SubscriptionDeleted,
    SubscriptionMoved,
    SubscriptionsRefused,
    UnexpectedAnswer,
    WrongContext,
)
from fieldfare.client.message import Message
from fieldfare.client.outbox import Outbox, OutboxSettings, OutboxStats, RefusedEvent
from fieldfare.client.polled_batching import AutotunedBatching, PolledBatching, WindowedBatching
from fieldfare.client.records import (
    DeadMessage,
    FilterWarning,
    KeyInfo,
    NewKey,
    NewSubscription,
    PulledMessage,
    SubscriptionInfo,
)
from fieldfare.client.retry import RetrySettings
from fieldfare.client.synchronous.client import Client
from fieldfare.client.synchronous.publisher import Publisher
from fieldfare.client.synchronous.subscriber import Subscriber
from fieldfare.client.tables import MissingPyarrow
from fieldfare.model import Backlog, SpaceBacklog, SubscriptionBacklog

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncPublisher",
    "AsyncSubscriber",
    "AutoBatching",
    "AutotunedBatching",
    "Backlog",
    "BatchPolicy",
    "BatchReport",
    "BatchSettings",
    "Client",
    "ClientClosed",
    "ConnectionFailed",
    "DeadMessage",
    "DeliveryTimeout",
    "FieldfareError",
    "FilterWarning",
    "FlushTimeout",
    "InvalidEvent",
    "InvalidName",
    "KeptInOutbox",
    "KeyInfo",
    "Message",
    "MissingPyarrow",
    "NewKey",
    "NewSubscription",
    "Outbox",
    "OutboxError",
    "OutboxFull",
    "OutboxInUse",
    "OutboxSettings",
    "OutboxStats",
    "PolledBatching",
    "PollingPolicy",
    "PublishError",
    "Publisher",
    "PublisherStats",
    "PulledMessage",
    "QueueFull",
    "QueueSettings",
    "Refusal",
    "RefusedEvent",
    "RetrySettings",
    "ServiceNotTrusted",
    "SpaceBacklog",
    "Subscriber",
    "SubscriptionBacklog",
    "SubscriptionDeleted",
    "SubscriptionInfo",
    "SubscriptionMoved",
    "SubscriptionsRefused",
    "UnexpectedAnswer",
    "WindowedBatching",
    "WrongContext",
]
