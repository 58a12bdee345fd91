"""The files in deploy/container: their steps name what exists, and the service runs without root."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fieldfare.cli.configuration import PREFIX, Known

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy" / "container"


def steps() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, with their arguments."""
    text = re.sub(r"\\\n\s*", " ", (CONTAINER / "Dockerfile").read_text())
    stages: list[list[tuple[str, str]]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, arguments.strip()))
    return stages


def test_copied_files_exist_and_are_sent_to_the_builder() -> None:
    build, run = steps()
    sent = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [word for name, arguments in build if name == "COPY" for word in arguments.split()[:-1]]
    assert copied
    for each in copied:
        path = each.removeprefix("./")
        assert (ROOT / path).exists() and f"!{path}" in sent, each
    assert all(arguments.startswith("--from=build") for name, arguments in run if name == "COPY")


def test_the_service_runs_as_a_user_without_rights() -> None:
    *_, run = steps()
    names = [name for name, _ in run]
    assert dict(run)["USER"].isdecimal() and int(dict(run)["USER"]) > 0
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert names.index("COPY") < names.index("USER"), (
        "the package belongs to root: the service cannot change it"
    )
    assert {"HEALTHCHECK", "VOLUME", "EXPOSE", "CMD"} <= set(names)
    assert "--uid 7737" in next(arguments for name, arguments in run if name == "RUN")


def test_settings_and_modules_that_are_named_exist() -> None:
    build, run = steps()
    known = {PREFIX + name.upper() for name in Known().names}
    compose = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    service = compose["services"]["fieldfare"]
    texts = " ".join(arguments for name, arguments in run if name == "ENV")
    assert {*re.findall(r"FIELDFARE_\w+", texts), *service["environment"]} <= known
    modules = re.findall(r"-m (fieldfare[\w.]+)", " ".join(arguments for _, arguments in build))
    assert modules
    for module in modules:
        assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").exists()
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    secret = service["environment"]["FIELDFARE_ADMIN_KEY_FILE"]
    assert secret.removeprefix("/run/secrets/") in compose["secrets"]
    assert (CONTAINER / service["build"]["context"] / service["build"]["dockerfile"]).exists()


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_no_fault() -> None:
    ignored = ["--ignore", "DL3008"]  # versions of Debian's packages are not pinned
    subprocess.run(["hadolint", *ignored, str(CONTAINER / "Dockerfile")], check=True)
