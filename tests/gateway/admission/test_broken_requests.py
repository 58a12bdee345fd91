"""Broken requests, from the description of the API and as raw bytes: some in each run, ten thousand in a long
one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from broken_requests import Findings, ask_by_description, ask_nonsense, prepare
from gateway_support import served

from doses import drawn
from fieldfare.gateway.context import Gateway

sys.path += [str(Path(__file__).parents[2] / name) for name in ("faults", "scenarios", "pipeline")]

from trials import nonsense

SEED = 20
DRAWN_EACH = 270
"""Requests for each of the operations."""
NONSENSE = 3_000
SMALL = ("/pull", "/v1/keys")
"""Of these paths some are drawn in the small dose: to prepare to draw takes seconds for each."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Gateway, httpx.Client]]:
    with served(tmp_path, wait_max_s=0.05) as found:
        prepare(found[1])
        yield found


def is_well(client: httpx.Client) -> bool:
    """Whether the service works."""
    prepare(client)
    return client.get("/healthz").status_code == 200 and client.get("/v1/stats").status_code == 200


@pytest.mark.long
def test_some_broken_requests_are_answered_as_described(service: tuple[Gateway, httpx.Client]) -> None:
    findings, (_, client) = Findings(), service
    ask_by_description(client, drawn(80), SEED, lambda: prepare(client), findings, SMALL)
    ask_nonsense(str(client.base_url), drawn(300), nonsense, SEED, findings)
    assert not findings.wrong, findings.told()
    assert is_well(client)
    assert len(findings.statuses) > 3, "the test is of something"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_broken_requests_are_answered_as_described(
    service: tuple[Gateway, httpx.Client],
) -> None:
    findings, (_, client) = Findings(), service
    ask_by_description(client, DRAWN_EACH, SEED, lambda: prepare(client), findings)
    ask_nonsense(str(client.base_url), NONSENSE, nonsense, SEED, findings)
    assert not findings.wrong, findings.told()
    assert findings.requests >= 10_000, f"{findings.requests} requests: {findings.statuses}"
    assert is_well(client)


@pytest.mark.long
def test_an_answer_that_is_not_described_is_found(
    service: tuple[Gateway, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that could not fail would show nothing."""
    findings, (_, client) = Findings(), service
    described = client.get("/openapi.json").json()
    del described["paths"]["/v1/spaces/{space}/subscriptions/{id}/dead-letters"]["get"]["responses"]["400"]
    monkeypatch.setattr(client, "get", lambda path: httpx.Response(200, json=described))
    ask_by_description(client, 40, SEED, lambda: None, findings, ("/dead-letters",))
    assert any("400: Undocumented" in what for what in findings.wrong), findings.told()
