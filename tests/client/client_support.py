"""Shared helpers of the client's tests."""

from __future__ import annotations

from fieldfare.client import RetrySettings

SOON = RetrySettings(first_wait_s=0.01, most_wait_s=0.05, deadline_s=10.0)
"""Retries as always, only faster."""
