"""Requests generated from the API's description, valid and invalid; and bytes that are nearly requests.

For all of them: no answer reports a failure of the service, each has a documented status and
body, and the service continues to work.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import schemathesis
from gateway_support import LINES, SUBSCRIPTIONS, event
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks

from fieldfare.gateway.federation.wire import MEDIA_TYPE

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
KNOWN = {"space": "default", "id": "known"}
"""The object of most requests: an existing subscription, with events and dead letters."""
KNOWN_SHARE = 0.7
OTHERS = ("401", "403", "408", "421", "431", "503")
"""Allowed statuses for any request; 500, a failure of the service, is not among them."""
ENDLESS = ("/stream", "/websocket")
"""Paths whose answers do not end; `nonsense` asks there."""
ANSWERED_S = 20.0
EVERYTHING = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


@dataclass
class Findings:
    """The errors that were found, grouped by kind, with an example of each."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, example: str) -> None:
        self.wrong.setdefault(what, example[:1_500])

    def told(self) -> str:
        return "\n".join(f"{what}\n    {example}" for what, example in self.wrong.items())


def prepare(client: httpx.Client) -> None:
    """Create the objects that requests refer to."""
    client.put(f"{SUBSCRIPTIONS}/known", json={"filter": "data.x >= 0", "delivery": {"max_attempts": 2}})
    lines = b"".join(json.dumps(event(n, {"x": n})).encode() + b"\n" for n in range(5))
    client.post("/v1/spaces/default/events", content=lines, headers=LINES)


def named(document: dict[str, Any]) -> dict[str, Any]:
    """The description, where instead of "any other answer" stands what its words say of those that pass."""
    for item in document["paths"].values():
        for described in item.values():
            if "responses" in described:
                problem = described["responses"].pop("default", None)
                others = {} if problem is None else dict.fromkeys(OTHERS, problem)
                described["responses"] = others | described["responses"]
    return document


@schemathesis.serializer(MEDIA_TYPE)
def as_bytes(_: Any, value: Any) -> bytes:
    """Send what was drawn for a link's batch as its text."""
    return str(value).encode(errors="replace")


def ask_by_description(
    client: httpx.Client,
    each: int,
    number: int,
    prepared: Callable[[], None],
    findings: Findings,
    paths: tuple[str, ...] = ("",),
) -> None:
    """Generate a number of requests for each documented operation, half of them valid.

    Parameters
    ----------
    client
        Reaches the service.
    each, number
        How many of each, and the seed.
    prepared
        Has what most requests are about be there.
    findings
        Told what is wrong.
    paths
        The ends of the paths that are asked.
    """
    url = str(client.base_url)
    schema = schemathesis.openapi.from_dict(named(client.get("/openapi.json").json()))
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(ENDLESS) or not operation.path.endswith(paths):
            continue
        prepared()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _ask(operation.as_strategy(generation_mode=mode), url, each // 2, number, findings)


def _ask(cases: st.SearchStrategy[Case], url: str, most: int, number: int, findings: Findings) -> None:
    @seed(number)
    @settings(
        max_examples=max(1, most), deadline=None, database=None, suppress_health_check=EVERYTHING,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(cases, st.floats(0, 1))
    def ask(case: Case, lot: float) -> None:
        if lot < KNOWN_SHARE:
            case.path_parameters = {**(case.path_parameters or {})}
            case.path_parameters |= {n: KNOWN[n] for n in case.path_parameters if n in KNOWN}
        _check(case, url, findings)

    try:
        ask()
    except Exception as error:  # what cannot be drawn: a path without parameters has no wrong request
        if "Unsatisfiable" not in type(error).__name__:
            raise


def _check(case: Case, url: str, findings: Findings) -> None:
    place = f"{case.method} {case.operation.path}"
    findings.requests += 1
    try:
        response = case.call(base_url=url, timeout=ANSWERED_S)
    except Exception as error:
        if isinstance(error, (ValueError, UnicodeError)):
            return  # what no client can send
        findings.note(f"{place}: {type(error).__name__}", f"{error} {case.as_curl_command()}")
        return
    status = response.status_code
    findings.statuses[status] += 1
    if status >= 500 and status not in (503, 507):
        findings.note(f"{place}: {status}", f"{response.text} {case.as_curl_command()}")
    try:
        case.validate_response(response, checks=CHECKS)
    except FailureGroup as group:
        for failure in group.exceptions:
            _note(findings, place, status, failure, response.text, case)
    except Failure as failure:
        _note(findings, place, status, failure, response.text, case)


def _note(findings: Findings, place: str, status: int, failure: Any, text: str, case: Case) -> None:
    said = f"{getattr(failure, 'message', failure)}"
    findings.note(f"{place}: {status}: {failure.title}", f"{said} {text[:300]} {case.as_curl_command()}")


def ask_nonsense(
    url: str, most: int, draw: Callable[[Random], bytes], number: int, findings: Findings
) -> None:
    """Send bytes that are nearly requests, each on a separate connection, and read the answers."""
    random = Random(number)
    address = httpx.URL(url)
    for _ in range(most):
        text = draw(random)
        findings.requests += 1
        answer = b""
        with socket.create_connection((address.host, address.port or 80), timeout=ANSWERED_S) as line:
            try:
                line.sendall(text)
                line.shutdown(socket.SHUT_WR)
                line.settimeout(0.1)
                while len(answer) < 1 << 16 and (piece := line.recv(1 << 16)):
                    answer += piece
            except OSError:
                pass  # it is cut off, or a stream that does not end
        head = answer.split(b"\r\n", 1)[0].split(b" ")
        if len(head) > 1 and head[1].isdigit():
            findings.statuses[int(head[1])] += 1
            if int(head[1]) >= 500 and int(head[1]) not in (501, 503, 505, 507):
                findings.note(f"nonsense: {head[1].decode()}", f"{text!r} {answer[:300]!r}")
