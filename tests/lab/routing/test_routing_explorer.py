"""Random histories of small overlays: each destination gets exactly the records that count."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from explorer import PROTOCOLS, history


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(10))
def test_no_record_is_lost_doubled_or_foreign(protocol: str, seed: int) -> None:
    assert history(seed, protocol).explore() == []


@pytest.mark.parametrize("seed", [21, 25])
def test_two_cut_links_do_not_wait_for_each_other_to_be_settled(seed: int) -> None:
    """The answer about one link was on another, which was cut too and waited for an answer on the first."""
    assert history(seed, "ddbr").explore() == []
