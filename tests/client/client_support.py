"""Shared helpers of the client's tests."""

from __future__ import annotations

from fieldfare.client import RetrySettings

SOON = RetrySettings(first_wait_s=0.01, most_wait_s=0.05, deadline_s=10.0)
"""Retries as always, only faster."""
PATIENT = RetrySettings(SOON.first_wait_s, SOON.most_wait_s, deadline_s=180.0)
"""For as long as a gateway needs to start on a busy machine."""
