"""The console's files over HTTP, and what they must not hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gateway_support import Running, run, running

from fieldfare.gateway import console

FOLDER = Path(console.__file__).parent
FILES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg"))


def test_each_file_is_served_with_a_strict_policy_and_without_a_key(tmp_path: Path) -> None:
    async def look(r: Running) -> None:
        for path in FILES:
            answer = await r.client.get(f"/console/{path.relative_to(FOLDER).as_posix()}")
            assert answer.status_code == 200 and answer.content == path.read_bytes()
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "require-trusted" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await r.client.get(
                f"/console/{path.relative_to(FOLDER).as_posix()}",
                headers={"if-none-match": answer.headers["etag"]},
            )
            assert (again.status_code, again.content) == (304, b"")

    async def work() -> None:
        (tmp_path / "admin.key").write_text("k" * 40)
        async with running(tmp_path / "data", admin_key_file=tmp_path / "admin.key") as r:
            await look(r)
            page = await r.client.get("/console")
            assert page.text.startswith("<!doctype html>") and page.headers["content-type"].startswith(
                "text/html"
            )
            head = await r.client.head("/console")
            assert (head.status_code, head.content) == (200, b"")
            assert (await r.client.post("/console")).status_code == 405

    run(work)


@pytest.mark.parametrize(
    "path", ["/console/__init__.py", "/console/../app.py", "/console/nothing.js", "/consoles"]
)
def test_no_other_file_is_served(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            assert (await r.client.get(path)).status_code == 404

    run(work)


def test_no_text_becomes_markup_and_no_other_host_is_named() -> None:
    wrong = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage|\.cookie"
    )
    for path in FILES:
        text = path.read_text()
        assert not wrong.search(text), path
        named = set(re.findall(r"https?://[^\"'` )]+", text)) - {"http://www.w3.org/2000/svg"}
        assert all(url.startswith("https://example.com") for url in named), (path, named)


def test_the_files_are_small_and_in_the_wheel() -> None:
    assert sum(path.stat().st_size for path in FILES) < 300_000
    packaged = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"gateway/console/*.*", "gateway/console/pages/*"' in packaged
