"""Calls about the service's figures: its state, and where time goes."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fieldfare.client.protocol import ApiCall, read_object


def stats() -> ApiCall[dict[str, Any]]:
    """Read the service's current figures."""
    return ApiCall("GET", "/v1/stats", read_object)


def pipeline() -> ApiCall[dict[str, Any]]:
    """Read the state of the pipeline and of the service's processes."""
    return ApiCall("GET", "/v1/pipeline", read_object)


def trace(seconds: float, space: str | None) -> ApiCall[dict[str, Any]]:
    """Trace records for some seconds."""
    of_space = "" if space is None else f"&space={quote(space, safe='')}"
    return ApiCall("GET", f"/v1/trace?seconds={seconds:.3f}{of_space}", read_object, extra_wait_s=seconds)
