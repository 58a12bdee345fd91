"""A service for unit tests: `LocalService`, in the test's own process, ready in a fraction of a second.

It is the real gateway, with the API, the checks and the delivery of ``fieldfare serve``. Only matching is
done without Spark and Java, by the evaluator of filters: exact, but slow where there are many filters.
"""

from __future__ import annotations

from fieldfare.testing.local_service import LocalService

__all__ = ["LocalService"]
