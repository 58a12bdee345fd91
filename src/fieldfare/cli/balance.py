"""``fieldfare balance``: the loads of the brokers, and moving subscriptions between them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fieldfare.cli.connection import connect
from fieldfare.cli.output import JsonOption, UrlOption, known_form, out, print_json, printable

SHOWN_MAX = 20
"""Maximum moves that are listed; of more, the number is shown."""

AGAIN_S = 2.0
"""Pause between two requests while a broker is drained, in seconds."""


def balance(
    apply: Annotated[bool, typer.Option("--apply", help="Move the subscriptions.")] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Move all subscriptions away that are not pinned.")
    ] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the loads of all brokers, and which subscriptions this one would move where, and why.

    Without `--apply`, nothing is done.

    Example:
    ```
    fieldfare balance
    fieldfare balance --drain --apply
    ```
    """
    with connect(url) as client:
        if not apply:
            state = client.get_balance(drain=drain)
            with known_form():
                print_json(state) if as_json else _show(printable(state), drain)
            return
        while True:
            begun = client.balance(drain=drain)
            with known_form():
                print_json(begun) if as_json else _show_begun(printable(begun))
            if not (drain and begun["left"]):
                break
            time.sleep(AGAIN_S)


def _show(state: dict[str, Any], drain: bool) -> None:
    table = Table(box=None)
    for name in (
        "broker",
        "state",
        "input",
        "output",
        "delay",
        "cpu",
        "memory",
        "queue",
        "subs",
        "age",
    ):
        table.add_column(name, justify="left" if name in ("broker", "state") else "right")
    for each in state["brokers"]:
        name = f"* {each['name']}" if each["name"] == state["broker"] else f"  {each['name']}"
        ratios = [f"{100 * each[key]:.1f} %" for key in ("input", "output")]
        others = [f"{100 * each[key]:.0f} %" for key in ("cpu", "memory")]
        table.add_row(
            *(name, each["state"], *ratios, f"{each['delay_ms']:.3g} ms", *others),
            *(f"{each['queue_s']:.1f} s", f"{each['subscriptions']:,}", f"{each['age_s']:.0f} s"),
        )
    out().print(table)
    out().print(Text(describe_automatic(state["automatic"])))
    out().print(Text(describe_target(state)))
    for action in state["actions"]:
        out().print(Text(describe(action)))
    _show_moves(state["moves"], "would move")
    if state["resting"]:
        out().print(
            Text(
                f"{state['resting']:,} subscriptions stay for now: they have just arrived, or could not move"
            )
        )
    if state["pinned"]:
        out().print(Text(f"{state['pinned']:,} pinned subscriptions stay"))
    if state["moves"]:
        out().print(Text(f"`fieldfare balance {'--drain ' if drain else ''}--apply` does it"))
    elif not drain:
        out().print(Text("nothing is to be moved"))


def describe_automatic(automatic: dict[str, Any]) -> str:
    """Return whether a broker balances by itself, and its last decision."""
    if not automatic["is_automatic"]:
        return "this broker does not balance automatically: start it with --balance"
    text, last = f"this broker balances automatically; its state is {automatic['state']}", automatic["last"]
    if last is None:
        return f"{text}, and it has decided nothing yet"
    reason = (
        f"{last['metric']} was {last['here']:.3g} here and {last['there']:.3g} at {last['to']},"
        f" the mean {last['target']:.3g}"
    )
    if last["overloaded"]:
        reason = f"{last['overloaded']} was overloaded"
    done = f"{last['moved']} subscriptions to {last['to']}" if last["moved"] else "nothing to move"
    return f"{text}; {last['age_s']:.0f} s ago: {reason}: {done}"


def describe_target(state: dict[str, Any]) -> str:
    """Return what all sites that count are to have, and which do not count."""
    input_percent, output_percent = (100 * state["target"][name] for name in ("input", "output"))
    text = f"each is to have the mean: input {input_percent:.1f} %, output {output_percent:.1f} %"
    away = [each["name"] for each in state["brokers"] if not each["counts"]]
    return f"{text}; not counted: {', '.join(away)}" if away else text


def describe(action: dict[str, Any]) -> str:
    """Return what is said about an entry of the broker-action list."""
    if action["overloaded"]:
        why = f"{action['overloaded']} is overloaded"
    else:
        why = f"{action['metric']} is {action['difference']:.2f} above that of {action['to']}"
    if not action["is_better"]:
        return f"{why}: no move to {action['to']} brings both nearer to the mean"
    if action["waits_s"]:
        why = f"{why} (must last for {action['waits_s']:.0f} s more)"
    here, there = action["here"], action["there"]
    return (
        f"{why}: afterwards input {100 * here['input']:.1f} % here and {100 * there['input']:.1f} % at"
        f" {action['to']}, output {100 * here['output']:.1f} % and {100 * there['output']:.1f} %"
    )


def _show_begun(begun: dict[str, Any]) -> None:
    _show_moves(begun["begun"], "moves")
    for each in begun["refused"]:
        out().print(Text(f"{each['space']}/{each['id']} stays: {each['detail']}"))
    if not begun["begun"] and not begun["refused"]:
        out().print(Text("nothing is to be moved"))
    if begun["left"]:
        out().print(Text(f"{begun['left']:,} follow"))


def _show_moves(moves: list[dict[str, Any]], verb: str) -> None:
    for each in moves[:SHOWN_MAX]:
        out().print(Text(f"{each['space']}/{each['id']} {verb} to {each['to']}"))
    if len(moves) > SHOWN_MAX:
        out().print(Text(f"and {len(moves) - SHOWN_MAX:,} more"))
