"""A webhook receiver with the standard library only: the service sends it matching events by HTTP.

SECRET=whsec_... python examples/receiver.py PORT

The service must be allowed to call this machine (``FIELDFARE_WEBHOOK_ALLOW=127.0.0.1``), and a subscription
must have the push address ``http://127.0.0.1:PORT/`` and the secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["SECRET"].removeprefix("whsec_"))
OLD_S = 300
seen: set[str] = set()  # The last minutes would suffice; a real receiver stores it across restarts.


def is_signed(headers: Message, body: bytes) -> bool:
    """Whether a request is recent and signed with the secret."""
    id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(time.time() - int(at)) > OLD_S:
        return False
    digest = hmac.digest(KEY, f"{id}.{at}.".encode() + body, hashlib.sha256)
    expected = "v1," + base64.b64encode(digest).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(each.encode(), expected.encode()) for each in given)


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_OPTIONS(self) -> None:
        """Answer the service's validation request: its messages are accepted."""
        self.answer(204, "WebHook-Allowed-Origin", self.headers.get("webhook-request-origin", ""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if not is_signed(self.headers, body):
            self.answer(401)
            return
        id = self.headers["webhook-id"]
        if id not in seen:  # Otherwise it is a retry, as the first answer was lost.
            event = json.loads(body)
            print(event["id"], event["data"], flush=True)
            seen.add(id)
        self.answer(204)

    def answer(self, status: int, *header: str) -> None:
        self.send_response(status)
        if header:
            self.send_header(*header)
        if status != 204:
            self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
