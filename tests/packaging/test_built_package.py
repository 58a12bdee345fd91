"""The package: sdist and wheel are built, installed in an empty environment, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fieldfare.client import Client

CHECKOUT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
BUILD = "import setuptools.build_meta as backend, sys; getattr(backend, sys.argv[1])(sys.argv[2])"
READY_S = 600.0
"""Seconds for the first start of an installed service, which compiles the kernels."""


@dataclass(frozen=True)
class Package:
    sdist: Path
    wheel: Path


def run(command: Sequence[object], **given: object) -> str:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The sdist of this checkout, and the wheel that is built of the sdist alone."""
    folder = tmp_path_factory.mktemp("package")
    sources, dist = folder / "sources", folder / "dist"
    dist.mkdir()
    hidden = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(CHECKOUT / "src", sources / "src", ignore=hidden)
    for name in SOURCES:
        shutil.copy(CHECKOUT / name, sources)
    run([sys.executable, "-c", BUILD, "build_sdist", dist], cwd=sources)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    run([sys.executable, "-c", BUILD, "build_wheel", dist], cwd=unpacked)
    (wheel,) = dist.glob("*.whl")
    return Package(sdist, wheel)


def test_the_wheel_has_all_that_the_program_reads(package: Package) -> None:
    with zipfile.ZipFile(package.wheel) as wheel:
        names = set(wheel.namelist())
    expected = {
        str(path.relative_to(CHECKOUT / "src"))
        for path in (CHECKOUT / "src" / "fieldfare").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    of_program = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert of_program == expected
    assert any(name.endswith(".html") for name in names) and "fieldfare/py.typed" in names


def test_the_wheel_runs_where_it_is_unpacked(package: Package, tmp_path: Path) -> None:
    target = tmp_path / "site"
    with zipfile.ZipFile(package.wheel) as wheel:
        wheel.extractall(target)
    environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import fieldfare; print(fieldfare.__file__)"
    found = run([sys.executable, "-c", code], env=environment, cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(target)
    found = run([sys.executable, "-m", "fieldfare", "--version"], env=environment, cwd=tmp_path)
    assert found.startswith("fieldfare ")


@pytest.fixture(scope="module")
def python(package: Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the client alone."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=True)
    install(folder / "bin" / "python", str(package.wheel))
    return folder / "bin" / "python"


def install(python: Path, wanted: str) -> None:
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--constraint", CHECKOUT / "constraints.txt", wanted])


@pytest.mark.slow
def test_the_client_alone_tests_filters_without_numpy(python: Path, tmp_path: Path) -> None:
    event = tmp_path / "event.jsonl"
    event.write_text('{"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "data": {"price": 3}}')
    program = python.parent / "fieldfare"
    assert run([program, "--version"]).startswith("fieldfare ")
    run([program, "filter", "test", "data.price < 5", "--events", event])
    assert "numpy" not in run([python, "-m", "pip", "list"])


@pytest.fixture
def service(package: Package, python: Path, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The program of a service that runs on an empty directory, and the file with its output."""
    install(python, f"fieldfare[server] @ {package.wheel.as_uri()}")
    program, output = python.parent / "fieldfare", tmp_path / "output"
    with output.open("w") as file:
        command = [program, "serve", "--data", tmp_path / "data", "--port", "0"]
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, "HOME": str(tmp_path)}
        )
    yield program, output
    process.terminate()
    assert process.wait(60) == 0, output.read_text()


@pytest.mark.slow
def test_an_installed_service_delivers_events(service: tuple[Path, Path]) -> None:
    _, output = service
    deadline_s = time.monotonic() + READY_S
    while "fieldfare: ready" not in output.read_text():
        assert time.monotonic() < deadline_s, output.read_text()
        time.sleep(0.2)
    url = next(word for word in output.read_text().split() if word.startswith("http://")).rstrip(",")
    with Client(url) as client:
        client.create_subscription("data.price < 5", "cheap")
        client.publish({"source": "/a", "type": "t", "data": {"price": 3}})
        (message,) = client.pull("cheap", wait_s=60)
        assert message.event["data"] == {"price": 3}
