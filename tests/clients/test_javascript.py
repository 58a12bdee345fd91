"""The JavaScript client: its tests run in Node, against a gateway that matches continuously."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "gateway"))
sys.path.append(str(ROOT / "tests" / "pipeline"))

from gateway_support import NaivePipeline, served  # noqa: E402

CLIENT = ROOT / "clients" / "js"
NODE = shutil.which("node")
NODE_MIN = 20

pytestmark = pytest.mark.long


def node_version() -> int:
    if NODE is None:
        return 0
    done = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True)
    return int(done.stdout.lstrip("v").split(".")[0])


@pytest.mark.skipif(node_version() < NODE_MIN, reason=f"Node {NODE_MIN} or newer is not installed")
@pytest.mark.timeout(1200)
def test_the_javascript_client_keeps_its_promises(tmp_path: Path) -> None:
    with served(tmp_path) as (gateway, client):
        stop = threading.Event()

        def match() -> None:
            pipeline = NaivePipeline(gateway)
            while not stop.wait(0.005):
                pipeline.step()
                pipeline.beat()

        matching = threading.Thread(target=match)
        matching.start()
        try:
            done = subprocess.run(
                [str(NODE), "--test", "--test-reporter=tap", "test/"],
                cwd=CLIENT,
                env={**os.environ, "FIELDFARE_URL": str(client.base_url).rstrip("/")},
                capture_output=True,
                text=True,
                timeout=240,
            )
        finally:
            stop.set()
            matching.join()
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    assert "# fail 0" in done.stdout and "# pass 0" not in done.stdout


def test_the_package_has_all_its_modules_and_the_version_of_the_service() -> None:
    package = json.loads((CLIENT / "package.json").read_text())
    modules = {path.name for path in CLIENT.glob("*.js")} | {path.name for path in CLIENT.glob("*.d.ts")}
    assert set(package["files"]) == modules
    assert "dependencies" not in package
    assert f'version = "{package["version"]}"' in (ROOT / "pyproject.toml").read_text()
