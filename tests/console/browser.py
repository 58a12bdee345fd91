"""Debian's Chromium, driven over the DevTools protocol: pages as a person sees and uses them."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DEADLINE_S = 90.0
KEYS = {"Enter": ("\r", 13), "Tab": ("", 9), "Escape": ("", 27), " ": (" ", 32)}
KEYS |= {"ArrowDown": ("", 40), "ArrowUp": ("", 38)}


class PageError(AssertionError):
    """A condition did not come true, or a script failed."""


class Page:
    """One tab. It keeps what the page has said, and which addresses it has asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = count(1)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are noted."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._connection.recv(timeout=DEADLINE_S))
            if said.get("id") == number:
                if "error" in said:
                    raise PageError(f"{method}: {said['error']}")
                return dict(said["result"])
            self._note(said["method"], said.get("params", {}))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            if entry["source"] != "network":  # a refusal of the API is no fault of the page
                self.complaints.append(entry["text"])
        elif event == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """Evaluate an expression, or a promise, and return its value."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise PageError(found["exceptionDetails"]["exception"].get("description", script))
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline_s = time.monotonic() + DEADLINE_S
        value = f"(() => {{ const it = ({condition}); return it instanceof Node ? true : it; }})()"
        while not (found := self.run(value)):
            if time.monotonic() > deadline_s:
                raise PageError(f"{condition} did not come true; the page says: {self.text()[:2000]}")
            time.sleep(0.02)
        return found

    def see(self, text: str) -> None:
        """Wait until a text is visible."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """Change the size of the window, and whether the person prefers dark pages."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def click(self, words: str, kind: str = "button, a, summary, label") -> None:
        """Click on the visible control with this text, by a real movement of the mouse."""
        find = f"""(() => {{
            const named = [...document.querySelectorAll({json.dumps(kind)})].filter((each) =>
                (each.innerText.trim() === {json.dumps(words)} || each.ariaLabel === {json.dumps(words)})
                && each.checkVisibility() && !each.disabled);
            const dialog = document.querySelector("dialog[open]");
            const found = (dialog ? named.filter((each) => dialog.contains(each)) : named)[0];
            if (!found) return null;
            found.scrollIntoView({{ block: "center" }});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        before, place = None, self.wait(find)
        while place != before:  # what was loaded meanwhile may have moved it
            before = place
            self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            place = self.wait(find)
        x, y = place
        for kind_ in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind_, x=x, y=y, button="left", clickCount=1)

    def focus(self, label: str) -> None:
        """Focus the field with this label."""
        find = f"""(() => {{
            const dialog = document.querySelector("dialog[open]") ?? document;
            const named = [...dialog.querySelectorAll("label")].find((each) =>
                each.innerText.trim() === {json.dumps(label)} && each.checkVisibility());
            const found = named && (named.control ?? named.querySelector("input"));
            if (!found) return false;
            found.focus();
            if (found.select) found.select();
            return true;
        }})()"""
        self.wait(find)

    def type(self, label: str, text: str) -> None:
        """Type into the field with this label, in place of what it holds."""
        self.focus(label)
        self.send("Input.insertText", text=text)

    def choose(self, label: str, value: str) -> None:
        self.focus(label)
        self.run(
            f"(() => {{ const it = document.activeElement; it.value = {json.dumps(value)};"
            " it.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )

    def press(self, key: str) -> None:
        text, code = KEYS[key]
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path: Path) -> None:
        """Write what the whole page looks like."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def nameless(self) -> list[str]:
        """Return the roles of controls that a screen reader would read without a name."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        controls = {"button", "link", "textbox", "searchbox", "checkbox", "combobox", "spinbutton", "image"}
        return [
            str(node["role"]["value"])
            for node in nodes
            if not node.get("ignored")
            and node.get("role", {}).get("value") in controls
            and not node.get("name", {}).get("value", "").strip()
        ]

    def hosts(self) -> set[str]:
        """Return the hosts that were asked for anything."""
        return {urlsplit(url).netloc for url in self.asked if url.startswith(("http", "ws"))}


@contextmanager
def chromium(folder: Path, *options: str) -> Iterator[Page]:
    """Start a browser with a profile of its own, and yield its tab."""
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "--hide-scrollbars"),
        *(*options, "about:blank"),
    ]
    log = (folder / "chromium.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port = _port(folder, process)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            tabs = client.get("/json").json()
        url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        with connect(url, max_size=None, open_timeout=DEADLINE_S, compression=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
        log.close()


def _port(folder: Path, process: subprocess.Popen[bytes]) -> int:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(FileNotFoundError, IndexError):
            return int((folder / "DevToolsActivePort").read_text().splitlines()[0])
        time.sleep(0.02)
    raise PageError(f"Chromium did not start: {(folder / 'chromium.log').read_text()}")
