"""The client is written once: the one for ordinary programs is made from the one for asyncio."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from fieldfare.client import AsyncClient, AsyncPublisher, AsyncSubscriber, Client, Publisher, Subscriber

ROOT = Path(__file__).parents[2]


def test_the_generated_client_is_up_to_date() -> None:
    """A fix was made in ``client/synchronous``, and the next ``make client`` would have undone it."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "synchronous_client.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("awaited", "plain"), [(AsyncClient, Client), (AsyncPublisher, Publisher), (AsyncSubscriber, Subscriber)]
)
def test_both_clients_have_the_same_verbs_with_the_same_parameters(awaited: type, plain: type) -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(verb).parameters)
            for name, verb in vars(kind).items()
            if inspect.isfunction(verb) and not name.startswith("_")
        }

    assert verbs(awaited) == verbs(plain) != {}
