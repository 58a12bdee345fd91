"""The programs of the pages about other languages publish and receive events, with the CloudEvents SDKs."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from tests.docs.test_documentation import blocks

from fieldfare_lab.ports import find_free_port

GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
JAVA, MAVEN = shutil.which("java"), shutil.which("mvn")
SUBSCRIPTION = "/v1/spaces/default/subscriptions/late"
PROGRAMS = ("publish", "pull", "receive")
PORT = "9000"
EXPECTED = ['10 {"delay":45}', '11 {"delay":46}']

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def programs(page: str, language: str, port: int) -> dict[str, str]:
    """Return the page's programs, with another port for the receiver."""
    found = [text for each, text in blocks(page) if each == language]
    assert len(found) == len(PROGRAMS) and found[2].count(PORT) == 1
    return dict(zip(PROGRAMS, (*found[:2], found[2].replace(PORT, str(port))), strict=True))


def go_commands(folder: Path, port: int) -> dict[str, Sequence[str]]:
    """Build the Go programs; only modules that are in the module cache are used."""
    if GO is None:
        pytest.skip("go is not installed")
    environment = {**os.environ, "GOPROXY": "off", "GOSUMDB": "off", "GOFLAGS": "-mod=mod"}
    (script,) = (text for each, text in blocks("docs/languages/go.md") if each == "sh" and "go get" in text)
    for name, text in programs("docs/languages/go.md", "go", port).items():
        (folder / name).mkdir()
        (folder / name / "main.go").write_text(text)
    for line in script.splitlines():
        command = [GO, *line.split()[1:]]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the CloudEvents SDK is not in the module cache ({line}): {done.stderr[-300:]}")
    run = [GO, "build", "-o", f"{folder}/bin/", "./..."]
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: [f"{folder}/bin/{name}"] for name in PROGRAMS}


def java_commands(folder: Path, port: int) -> dict[str, Sequence[str]]:
    """Copy the SDK from Maven's local repository; Java compiles a program when it starts."""
    if JAVA is None or MAVEN is None:
        pytest.skip("java or mvn is not installed")
    (pom,) = (text for each, text in blocks("docs/languages/java.md") if each == "xml")
    (folder / "pom.xml").write_text(pom)
    command = [MAVEN, "-q", "-o", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the CloudEvents SDK is not in Maven's local repository: {done.stdout[-300:]}")
    commands = {}
    for name, text in programs("docs/languages/java.md", "java", port).items():
        file = folder / f"{name.title()}.java"
        file.write_text(text)
        commands[name] = [JAVA, "-cp", f"{folder}/lib/*", str(file)]
    return commands


@contextmanager
def lossy(url: str) -> Iterator[str]:
    """A proxy that passes each request on, and answers 502 to the first two of each body."""
    got: Counter[bytes] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            answer = httpx.post(url + self.path, content=body, headers=headers)
            got[body] += 1
            self.send_response(502 if got[body] < 3 else answer.status_code)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def program(command: Sequence[str], url: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "FIELDFARE_URL": url}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def output(command: Sequence[str], url: str) -> list[str]:
    with program(command, url) as process:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    return said.splitlines()


@pytest.mark.parametrize("prepared", [go_commands, java_commands], ids=["go", "java"])
@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_the_programs_of_a_page_publish_pull_and_receive(tmp_path: Path, prepared, mode: str) -> None:
    from faulty_service import wait_until
    from real_gateway import running_gateway
    from test_webhook_example import is_listening

    port = find_free_port()
    commands = prepared(tmp_path, port)
    with running_gateway(tmp_path / "data", webhook_allow="127.0.0.1") as gateway:
        client = httpx.Client(base_url=gateway.url, timeout=180)
        client.put(SUBSCRIPTION, json={"filter": "data.delay > 30"}).raise_for_status()
        with lossy(gateway.url) if prepared is go_commands else nullcontext(gateway.url) as url:
            assert output(commands["publish"], url) == []
        assert output(commands["pull"], gateway.url) == EXPECTED, "a repeated request is stored once"
        assert client.post(f"{SUBSCRIPTION}/pull", json={}).json()["messages"] == [], "they are settled"
        push = {"url": f"http://127.0.0.1:{port}/", "mode": mode}
        with program(commands["receive"], gateway.url) as receiver:
            assert receiver.stdout is not None
            wait_until(lambda: is_listening(port))
            client.patch(SUBSCRIPTION, json={"delivery": {"push": push}}).raise_for_status()
            client.post(f"{SUBSCRIPTION}/seek", json={"to": "earliest"}).raise_for_status()
            assert [receiver.stdout.readline().rstrip("\n") for _ in EXPECTED] == EXPECTED
