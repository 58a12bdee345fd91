"""Owner and labels in the console, and the names of attributes that its filter editor offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import CHROMIUM
from gateway_support import until
from test_console import FRAMES, HOSTILE, SHOTS, opened, service, set_up, shoot

from fieldfare.gateway import filter_warnings

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"),
]
BOX = "document.querySelector('[role=combobox]')"
NAMES = "[...document.querySelectorAll('[role=option] .mono')].map((each) => each.innerText)"
STATE = f"['aria-expanded', 'aria-activedescendant'].map((each) => {BOX}.getAttribute(each) ?? '').join(' ')"


@pytest.fixture(autouse=True)
def fresh_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAMPLE_FRESH_S", "EMPTY_SAMPLE_FRESH_S"):
        monkeypatch.setattr(filter_warnings, name, 0.0)


def test_owner_and_labels_are_shown_changed_and_picked(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        s.put("a", "data.x = 1", owner="ann", labels={"env": "prod", "team": "payments"})
        s.put("b", "data.x = 1", owner=HOSTILE, labels={"env": "prod", "__proto__": "x", "html": HOSTILE})
        s.put("c", "data.x = 1", owner="ann", labels={"env": "test"})
        with opened(tmp_path, s) as page:
            ids = "[...document.querySelectorAll('tbody th')].map((each) => each.innerText.trim()).sort()"
            page.click("Subscriptions")
            page.wait(f"{ids}.length === 7")
            assert HOSTILE in page.text() and "__proto__=x" in page.text()
            shoot(page, "labels")
            page.click("Only with the label env=prod", "button")
            page.wait(f"{ids}.join() === 'a,b'")
            page.click("Only with the owner ann", "button")
            page.wait(f"{ids}.join() === 'a'")
            page.click("Id")
            page.wait(f"{ids}.join() === 'a'")
            page.click("Remove env=prod", "button")
            page.wait(f"{ids}.join() === 'a,c'")
            page.type("Label or owner", "env=test")
            page.press("Enter")
            page.wait(f"{ids}.join() === 'c'")
            shoot(page, "labels-picked")
            page.type("Search", "nothing")
            page.see("No subscription has all of this.")
            page.click("Remove env=test", "button")
            page.click("Remove owner ann", "button")
            page.type("Search", "team=pay")
            page.wait(f"{ids}.join() === 'a'")
            page.click("a", "tbody a")
            page.see("Change owner and labels")
            shoot(page, "labels-of-one")
            page.click("Change owner and labels")
            page.type("Owner", "bob")
            page.type("Labels", "env=test\ntier = 1\na b=c")
            page.click("Save")
            page.see("a label's key is 1 to 63 of the letters")
            page.type("Labels", "env=test\ntier = 1")
            shoot(page, "labels-form")
            page.click("Save")
            page.see("Owner and labels were saved.")
            path = "/v1/spaces/default/subscriptions"
            found = s.client.get(f"{path}/a").json()
            assert (found["owner"], found["labels"]) == ("bob", {"env": "test", "tier": "1"})
            page.click("Only with the label env=test", "button")
            page.wait(f"{ids}.join() === 'a,c'")
            page.open(f"{s.url}/console#/subscription/default/b")
            page.click("Change owner and labels")
            page.choose("Owner", "")
            page.click("Save")
            until(lambda: "owner" not in s.client.get(f"{path}/b").json())
            assert s.client.get(f"{path}/b").json()["labels"]["__proto__"] == "x"
            page.open(f"{s.url}/console#/new/default")
            page.type("Id", "made")
            page.type("Filter", "data.x = 2")
            page.type("Owner", "eve")
            page.type("Labels", "env=lab")
            page.see("valid")
            page.click("Create subscription")
            page.wait("location.hash === '#/subscription/default/made'")
            made = s.client.get(f"{path}/made").json()
            assert (made["owner"], made["labels"]) == ("eve", {"env": "lab"})


def test_names_of_attributes_are_offered_while_one_types_a_filter(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        s.publish({HOSTILE: 1, "dep time": "x"}, type="odd", source="/evil")
        s.publish({"secret": 1}, space="trading")
        with opened(tmp_path, s) as page:
            page.open(f"{s.url}/console#/new/default")
            page.see("Ctrl+Space shows all")
            assert page.run(f"{STATE} === 'false '")
            page.type("Filter", "dep")
            page.wait(f"{NAMES}.includes('data.dep_delay')")
            assert page.run(NAMES) == ["data.dep_delay", 'data."dep time"']
            assert page.run(f"{STATE} === 'true '"), "nothing is chosen before a key says so"
            page.press("ArrowDown")
            chosen = f"document.getElementById({BOX}.getAttribute('aria-activedescendant'))"
            assert page.run(f"{chosen}.ariaSelected") == "true"
            assert page.run(f"{chosen}.innerText").startswith("data.dep_delay")
            shoot(page, "completion")
            page.focus("Filter")
            page.type("Filter", "dep")
            page.wait(f"{STATE} === 'true '")
            page.press("ArrowUp")
            page.press("ArrowDown")
            page.press("Enter")
            assert page.run(f"{BOX}.value") == "data.dep_delay" and page.run(STATE) == "false "
            page.send("Input.insertText", text=" > 30 AND data.o")
            page.wait(f"{NAMES}[0] === 'data.origin'")
            page.press("ArrowDown")
            page.press("Tab")
            assert page.run(f"{BOX}.value") == "data.dep_delay > 30 AND data.origin"
            page.send("Input.insertText", text=" = 'data.d")
            page.run(FRAMES)
            assert page.run(STATE) == "false ", "nothing is offered in a text constant"
            page.send("Input.insertText", text="'")
            page.see("match (")
            page.type("Filter", "onerror")
            page.wait(f"{NAMES}.length === 1")
            assert HOSTILE.replace('"', '""') in page.run(f"{NAMES}[0]"), "a name is shown as text"
            page.press("Escape")
            assert page.run(STATE) == "false " and page.run("location.hash") == "#/new/default"
            page.type("Filter", "sec")
            page.run(FRAMES)
            assert page.run(STATE) == "false ", "another space's attributes are not offered"


def test_a_long_filter_of_another_user_does_not_stop_the_tab(tmp_path: Path) -> None:
    """A comment of quotes and dots looked like a name; the search for its begin took hours."""
    with service(tmp_path) as s:
        s.put("long", "data.x > 1 --" + '"".' * 10_000 + "\nAND data.x < 9")
        with opened(tmp_path, s) as page:
            page.open(f"{s.url}/console#/subscription/default/long")
            page.click("Change filter")
            page.wait(f"{BOX}.value.length > 30000")
            page.run(f"{BOX}.focus(), {BOX}.setSelectionRange(30014, 30014)")
            page.run("document.execCommand('insertText', false, ' ')")
            page.see("valid")  # the service's check, which begins after the search for a name


def test_a_name_is_taken_by_touch_and_each_language_has_its_names(tmp_path: Path) -> None:
    with service(tmp_path) as s:
        set_up(s)
        with opened(tmp_path, s) as page:
            page.open(f"{s.url}/console#/new/default")
            page.see("Ctrl+Space shows all")
            page.view(390, 844)
            page.type("Filter", "dest")
            page.wait(f"{NAMES}[0] === 'data.dest'")
            if SHOTS:
                page.picture(Path(SHOTS) / "completion-typed-phone.png")
            x, y = page.run(
                "(() => { const it = document.querySelector('[role=option]').getBoundingClientRect();"
                " return [it.x + 20, it.y + 10]; })()"
            )
            for kind in ("touchStart", "touchEnd"):
                points = [{"x": x, "y": y}] if kind == "touchStart" else []
                page.send("Input.dispatchTouchEvent", type=kind, touchPoints=points)
            page.wait(f"{BOX}.value === 'data.dest'")
            assert page.run(f"document.activeElement === {BOX}"), "the text keeps the focus"
            page.choose("Language", "cesql")
            page.type("Filter", "s")
            page.wait(f"{NAMES}.includes('source')")
            assert not page.run(f"{NAMES}.some((each) => each.includes('.'))")
            page.choose("Language", "eventbridge")
            page.type("Filter", "source")
            page.run(FRAMES)
            assert page.run(STATE) == "false "
