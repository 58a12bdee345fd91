"""Shared helpers of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import Result

Fieldfare = Callable[..., Result]
"""Runs a command against the test's service; the result has stdout, stderr and exit_code."""
