"""What README.md and docs/ say is true: their examples run, their tables are the code's.

A shell block is followed by what it prints, where that is shown. The commands of docs/filter-tools.md are
tested here, the rest of it with the filters.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fieldfare.cli.app import COMMANDS, load_command
from fieldfare.cli.app import app as cli

ROOT = Path(__file__).parents[2]
DEFAULT_URL = "http://127.0.0.1:7737"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))),
    "TERM": "dumb",
}
PAGE_BREAK = "== the next page"
SERVICE_PAGES = [
    f"docs/{name}.md"
    for name in (
        *("service", "kafka", "cluster", "elastic", "publishing", "subscriptions", "labels"),
        *("webhooks", "dead-letters", "filter-help", "http-api", "metrics", "faults", "settings"),
    )
]
"""The pages about the service, in the order in which their examples run: each goes on from those before."""
PAGE_WORDS_MAX = 3_000
README_LINES_MAX = 150
README_FIGURES_MAX = 10
LONG_PAGES: dict[str, str] = {}
"""Pages above ``PAGE_WORDS_MAX``, each with the reason why it cannot be split. There are none."""
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The code blocks of a page: language and text."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def run_shell(script: str, folder: Path) -> str:
    result = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def shell_examples(page: str, word: str = "curl") -> Iterator[tuple[str, str, str]]:
    """Each shell block with a word in it: the script, and the language and text of what it prints."""
    found = [*blocks(page), ("", "")]
    for (language, script), (shown_as, shown) in itertools.pairwise(found):
        if language == "sh" and word in script:
            yield script, shown_as if shown_as in ("json", "text") else "", shown


@pytest.mark.long
def test_the_requests_of_the_service_pages_are_answered_as_shown(gateway_url: str, tmp_path: Path) -> None:
    examples = [example for page in SERVICE_PAGES for example in shell_examples(page, f"{DEFAULT_URL}/")]
    assert len(examples) == 36
    for script, shown_as, shown in examples:
        answer = run_shell(script.replace(DEFAULT_URL, gateway_url), tmp_path)
        if shown_as == "json":
            assert json.loads(answer) == json.loads(shown), script
        elif shown_as == "text":
            assert answer == shown, script


@pytest.mark.long
def test_the_tables_of_the_publishing_page_are_published(gateway_url: str) -> None:
    program = "\n".join(text for language, text in blocks("docs/publishing.md") if language == "python")
    names: dict[str, object] = {"url": gateway_url}
    exec(program, names)
    assert [str(position) for position in names["positions"]] == ["0-1-0", "0-1-1"]  # type: ignore[attr-defined]


@pytest.mark.long
def test_the_commands_of_the_filter_tools_page_print_what_is_shown(tmp_path: Path) -> None:
    (events,) = (script for language, script in blocks("docs/filter-tools.md") if "cat >" in script)
    run_shell(events, tmp_path)
    examples = list(shell_examples("docs/filter-tools.md", "fieldfare filter"))
    assert {script.split()[2] for script, _, _ in examples} == {"check", "explain", "test", "convert"}
    for script, _, shown in examples:
        assert run_shell(script, tmp_path) == shown, script


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_filter_commands_of_a_first_page_print_what_is_shown(page: str, tmp_path: Path) -> None:
    examples = list(shell_examples(page, "fieldfare filter"))
    assert examples
    for script, _, shown in examples:
        assert run_shell(script, tmp_path) == shown, script


def test_the_limits_of_help_with_filters_are_documented() -> None:
    from fieldfare.gateway.event_samples import SampleSize
    from fieldfare.gateway.routes.filters import EVENTS_MAX

    size_mib = SampleSize(EVENTS_MAX).size_bytes >> 20
    limits = (ROOT / "docs" / "limits.md").read_text()
    assert f"and of a sample | {EVENTS_MAX:,}; a sample also ends at {size_mib} MiB |" in limits
    assert f"up to {EVENTS_MAX:,} `events`" in (ROOT / "docs" / "filter-help.md").read_text()


def test_every_route_is_in_the_http_api_page() -> None:
    from fieldfare.gateway.openapi.document import api_document

    text = (ROOT / "docs" / "http-api.md").read_text()
    shown = re.findall(r"^\| `([A-Z]+) (/\S+)` \|", text, re.MULTILINE)
    routes = [
        (method.upper(), path)
        for path, item in api_document()["paths"].items()
        for method in item
        if method != "parameters"
    ]
    assert sorted(shown) == sorted(routes)


def test_every_setting_is_in_the_settings_page_with_its_default() -> None:
    sys.path.append(str(ROOT / "tools"))
    from settings_page import BASIC, page

    from fieldfare.cli.configuration import Known

    text = (ROOT / "docs" / "settings.md").read_text()
    assert page(text) == text, "run `make docs`"
    shown = re.findall(r"^\| `FIELDFARE_(\w+)` \|", text, re.MULTILINE)
    assert sorted(shown) == sorted(name.upper() for name in Known().names)
    assert set(BASIC) <= set(Known().names)


def test_every_metric_is_in_the_metrics_page() -> None:
    from fieldfare.gateway.metrics import Metrics

    text = (ROOT / "docs" / "metrics.md").read_text()
    shown = re.findall(r"^\| `(fieldfare_\w+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert shown == [
        (family.name + "_total" * (family.type == "counter"), family.type, family.documentation)
        for family in Metrics().collection.collect()
    ]


def test_every_kind_of_problem_is_in_the_http_api_page() -> None:
    text = (ROOT / "docs" / "http-api.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src/fieldfare/gateway").rglob("*.py"))
    kinds = set(re.findall(r"Problem\(\s*(?:\d+|status),\s*\"([a-z-]+)\"", sources)) - {"http"}
    assert len(kinds) > 15
    assert not {kind for kind in kinds if f"`{kind}`" not in text}


@pytest.mark.long
def test_the_quick_start_prints_what_is_shown(
    gateway_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "FIELDFARE_URL", gateway_url)
    time = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
    examples = list(shell_examples("docs/quickstart.md", "fieldfare "))[1:]  # but `pip` and `serve`
    assert [shown_as for _, shown_as, _ in examples] == ["text", "", "text"]
    for script, shown_as, shown in examples:
        printed = run_shell(script, tmp_path)
        assert not shown_as or time.sub("", printed) == time.sub("", shown), script
    (program,) = (text for language, text in blocks("docs/quickstart.md") if language == "python")
    (tmp_path / "example.py").write_text(program.replace(DEFAULT_URL, gateway_url))
    assert run_shell(f"{sys.executable} example.py", tmp_path) == "{'sensor': 'roof', 'temperature': 41}\n"


@pytest.mark.long
def test_the_client_example_of_the_readme_runs(gateway_url: str, tmp_path: Path) -> None:
    (example,) = (text for language, text in blocks("README.md") if "Client(" in text)
    script = tmp_path / "example.py"
    script.write_text(example.replace(DEFAULT_URL, gateway_url))
    run = [sys.executable, script]
    result = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr
    assert [line.split(" ", 1)[1] for line in result.stdout.splitlines()] == [
        "{'origin': 'JFK', 'dep_delay': 45}",
        "{'origin': 'JFK', 'dep_delay': 90}",
    ]


@pytest.mark.spark
def test_the_spark_examples_of_the_readme_and_the_spark_page_run(tmp_path: Path) -> None:
    """Each page's program stands alone; they share a process, as starting Spark takes longer than both."""
    (readme,) = (text for language, text in blocks("README.md") if "fieldfare.spark" in text)
    page = list(blocks("docs/spark.md"))
    programs = [readme, "\n".join(text for language, text in page if language == "python")]
    printed, printed_by_page = _run_python(programs, tmp_path)
    assert "|        late|   JFK| SFO|       50|" in printed
    assert "|        west|   JFK| SFO|       50|" in printed
    for language, text in page:
        if language == "text":
            assert text in printed_by_page


@pytest.mark.spark
def test_the_command_of_the_spark_page_runs(tmp_path: Path) -> None:
    (script,) = (text for language, text in blocks("docs/spark.md") if language == "sh")
    said = r"2 events x 2 subscriptions: 2 matches in [\d.]+ s\nwritten to matches.jsonl\n"
    assert re.fullmatch(said, run_shell(script, tmp_path)), "nothing else goes to standard output"


def _run_python(programs: list[str], folder: Path) -> list[str]:
    """Run them as a user does whose environment is not activated: the path's ``python3`` has no packages.

    What each prints, one after the other in one process.
    """
    for number, program in enumerate(programs):
        (folder / f"example{number}.py").write_text(program)
    runs = [f"runpy.run_path('example{number}.py'); print({PAGE_BREAK!r})" for number in range(len(programs))]
    bare = folder / "bare"
    bare.mkdir()
    (bare / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    (bare / "python3").chmod(0o755)
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("PYSPARK")}
    path = f"{bare}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(["import runpy", *runs])],
        cwd=folder,
        env={**environment, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split(PAGE_BREAK)[:-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def command_lines(page: Path) -> Iterator[str]:
    """What follows the word fieldfare in a page's shell blocks and code spans, up to a pipe or a comment."""
    text = page.read_text().replace("\\\n", " ")
    spans = re.findall(r"`(fieldfare [^`\n]+)`", text)
    code = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    shell = [each for language, each in code if language in ("", "sh")]
    for line in (*spans, *"\n".join(shell).splitlines()):
        for found in re.findall(r"(?:^|[ /$|(])fieldfare ([a-z-][^|;&#]*)", line):
            yield re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", found)


def options_of(command: Any) -> set[str]:
    return {"--help", *(name for param in command.params for name in (*param.opts, *param.secondary_opts))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_of_the_pages_exist(page: Path) -> None:
    root = typer.main.get_command(cli)
    for line in command_lines(page):
        words = line.split()
        while words and words[0] in options_of(root):  # those before the command have a value each
            words = words[2:]
        if not words:
            continue
        assert words[0] in COMMANDS, f"{page.name}: fieldfare {line}"
        command = load_command(words.pop(0))
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        for word in words:
            name = word.split("=")[0].rstrip(".,)")
            assert not name.startswith("--") or name in options_of(command), f"{page.name}: fieldfare {line}"


def test_the_readme_stays_short_and_has_one_table_of_figures() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES_MAX
    tables = [line for line in lines if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line)]
    assert len(tables) == 1
    assert len([line for line in lines if line.startswith("|")]) - 2 <= README_FIGURES_MAX


def test_pages_stay_short() -> None:
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text().split()) for page in PAGES}
    long = {name for name, count in words.items() if name.startswith("docs/") and count > PAGE_WORDS_MAX}
    assert long == LONG_PAGES.keys()
