"""A data directory that an older fieldfare wrote, opened by this one.

``testdata/first-format.tar.xz`` is such a directory, as a `kill -9` of everything left it, with events that
nobody had matched yet: two spaces, five subscriptions (one of them replaced after half of the events, a sixth
deleted), seven records (one of them Arrow), of which the last two were stored while the pipeline stood
still, and one ack.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from service_support import Api, running_service

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

OWED = {
    ("default", "low"): ["0-0-1", "0-1-0", "0-2-0", "0-2-1", "0-4-1", "0-5-0", "0-7-0"],
    ("default", "replaced"): ["0-0-0", "0-1-0", "0-2-0", "0-4-0"],
    ("default", "word"): ["0-0-2", "0-2-1", "0-5-1", "0-7-1"],
    ("default", "strict"): [
        *("0-0-0", "0-0-1", "0-0-2", "0-1-0", "0-1-1", "0-2-0", "0-2-1", "0-2-2"),
        *("0-4-0", "0-4-1", "0-5-0", "0-5-1", "0-7-0", "0-7-1"),
    ],
    ("second", "all"): ["0-3-0", "0-6-0"],
}
"""The matches of every subscription that were not acked, worked out by hand."""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy of the directory."""
    with tarfile.open(Path(__file__).parent / "testdata" / "first-format.tar.xz") as archive:
        archive.extractall(tmp_path)
    return tmp_path / "data"


def test_nothing_is_lost_or_doubled_when_a_service_is_upgraded(older: Path) -> None:
    """An operator stops the old version (the hard way), installs the new one, and starts it.

    A publisher's last request was stored and its answer lost, just before: it repeats it to the new one.
    """
    last = [
        {"specversion": "1.0", "id": id, "source": "/q", "type": "quote", "data": data}
        for id, data in (
            ("9", {"price": 6, "title": "plain"}),
            ("10", {"price": 60, "title": "last falcon"}),
        )
    ]
    with running_service(older) as service:
        api = Api(service.url)
        repeated = {"Fieldfare-Producer": "gate", "Fieldfare-Sequence": "4"}
        assert api.publish("default", last, **repeated) == 5
        assert api.publish("default", last) == 7
        for (space, id), positions in OWED.items():
            found: list[str] = []
            while len(found) < len(positions):
                asked = {"max": 100, "wait_s": 20, "ack_deadline_s": 600}
                answer = api.http.post(f"/v1/spaces/{space}/subscriptions/{id}/pull", json=asked)
                assert answer.status_code == 200, answer.text
                messages = answer.json()["messages"]
                assert messages, f"{space}/{id} got {found} and no more"
                found += [message["position"] for message in messages]
            assert found == positions, (space, id)
        subscriptions = api.http.get("/v1/spaces/default/subscriptions").json()["subscriptions"]
        filters = {subscription["id"]: subscription["filter"] for subscription in subscriptions}
        assert filters.keys() == {"low", "replaced", "word", "strict"}
        assert filters["replaced"] == "data.price >= 90"
