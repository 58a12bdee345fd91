"""The policy of a publisher: chosen by a text or given, and what it estimates."""

from __future__ import annotations

from typing import Literal

from fieldfare.client.auto_batching import AutoBatching
from fieldfare.client.batching import BatchPolicy
from fieldfare.client.polled_batching import PolledBatching
from fieldfare.publishing.requests import RequestEstimates


def choose_policy(batch: BatchPolicy | Literal["auto"]) -> BatchPolicy:
    """Return the policy of a new publisher; "auto" creates a new `AutoBatching`."""
    if isinstance(batch, str):
        if batch == "auto":
            return AutoBatching()
        raise ValueError(f'batch must be "auto", BatchSettings(...) or another BatchPolicy, not {batch!r}')
    return batch


def find_estimates(policy: BatchPolicy) -> RequestEstimates | None:
    """Return the estimates of an adaptive policy; None for any other policy."""
    return policy.estimates() if isinstance(policy, AutoBatching | PolledBatching) else None
