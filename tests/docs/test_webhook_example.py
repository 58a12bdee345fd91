"""The example of a receiver is sent messages by a real gateway, and believes no one else."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fieldfare_lab.ports import find_free_port

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


def is_listening(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_the_receiver_hears_of_each_match_once(tmp_path: Path) -> None:
    from faulty_service import wait_until
    from real_gateway import running_gateway

    secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
    port = find_free_port()
    environment = {**os.environ, "SECRET": secret}
    command = [sys.executable, str(ROOT / "examples" / "receiver.py"), str(port)]
    receiver = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert receiver.stdout is not None
    try:
        wait_until(lambda: is_listening(port))  # a message that is sent before comes after the next one
        with running_gateway(tmp_path / "data", webhook_allow="127.0.0.1") as gateway:
            url = f"http://127.0.0.1:{port}/hooks/late"
            client = httpx.Client(base_url=f"{gateway.url}/v1/spaces/default", timeout=180)
            push = {"url": url, "secrets": [secret]}
            wanted = {"filter": "data.delay > 30", "delivery": {"push": push}}
            client.put("/subscriptions/late", json=wanted).raise_for_status()
            for id, delay in (("6", 45), ("7", 5), ("8", 99)):
                event = {"specversion": "1.0", "id": id, "source": "/s", "type": "t"}
                event |= {"data": {"delay": delay}}
                kind = {"content-type": "application/cloudevents+json"}
                client.post("/events", content=json.dumps(event), headers=kind).raise_for_status()
            assert receiver.stdout.readline() == "6 {'delay': 45}\n"
            assert receiver.stdout.readline() == "8 {'delay': 99}\n"
            forged = httpx.post(
                url,
                json=event,
                headers={"webhook-id": "1", "webhook-timestamp": "1", "webhook-signature": "v1,x"},
            )
            assert forged.status_code == 401
    finally:
        receiver.kill()
        receiver.wait()
