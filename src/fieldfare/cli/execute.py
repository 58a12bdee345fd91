"""``fieldfare subscribe --exec``: a command for each message."""

from __future__ import annotations

import os
import signal
import subprocess

import typer

from fieldfare.cli.output import say
from fieldfare.client.message import Message
from fieldfare.client.synchronous.subscriber import Subscriber

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
NO_SHELL_COMMAND = 127
NOT_EXECUTABLE = 126


class Commands:
    """Runs one command for each message, and counts how they end.

    Parameters
    ----------
    command
        For the shell. It has the event on its standard input, and its place in ``FIELDFARE_POSITION`` and
        ``FIELDFARE_ATTEMPT``.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self.done = self.failed = 0

    def handle(self, message: Message) -> None:
        """Run it; one that ends with another status than 0 has failed."""
        place = {"FIELDFARE_POSITION": str(message.position), "FIELDFARE_ATTEMPT": str(message.attempt)}
        ended = subprocess.run(
            self._command, shell=True, input=message.raw + b"\n", env=os.environ | place, check=False
        )
        if ended.returncode == 0:
            self.done += 1
            return
        self.failed += 1
        message.nack()
        say(f"{message.position}, attempt {message.attempt}: the command ended with {ended.returncode}")
        if ended.returncode in (NO_SHELL_COMMAND, NOT_EXECUTABLE):
            say("hint: it may not exist, or not be executable; --exec takes a command for the shell")


def execute(subscriber: Subscriber, command: str, concurrency: int) -> None:
    """Run a command for each message, until a signal; what runs then comes to its end."""
    commands = Commands(command)
    with subscriber:
        say(f"following {subscriber.id}; Ctrl-C ends it when the commands that run have ended")
        subscriber.process(commands.handle, concurrency=concurrency, drain_on=SIGNALS)
    say(f"{commands.done:,} done, {commands.failed:,} failed")
    raise typer.Exit(0)
