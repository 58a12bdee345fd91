"""``fieldfare subscribe --exec``: run a command for each message."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import typer

from fieldfare.cli.output import say
from fieldfare.client.errors import EncryptionError
from fieldfare.client.message import Message
from fieldfare.client.synchronous.subscriber import Subscriber

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
POSITION_VARIABLE = "FIELDFARE_POSITION"
ATTEMPT_VARIABLE = "FIELDFARE_ATTEMPT"
NO_SHELL_COMMAND = 127
NOT_EXECUTABLE = 126


def give_up(message: Message, error: EncryptionError, settle: bool = True) -> None:
    """Report a message that cannot be decrypted and, with ``settle``, make it a dead letter."""
    say(str(error))
    if settle:
        message.terminate("the message cannot be decrypted")


class Commands:
    """Runs a command for each message, and counts successes and failures.

    Parameters
    ----------
    command
        A shell command. It gets the event on standard input, and the message's position and attempt in the
        environment variables ``FIELDFARE_POSITION`` and ``FIELDFARE_ATTEMPT``.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: set[subprocess.Popen[bytes]] = set()
        self.done = self.failed = 0

    def handle(self, message: Message) -> None:
        """Run the command for a message; a status other than 0 is a failure, and the message is nacked."""
        try:
            given = message.raw + b"\n"
        except EncryptionError as error:
            give_up(message, error)
            return
        place = {POSITION_VARIABLE: str(message.position), ATTEMPT_VARIABLE: str(message.attempt)}
        # In a group of its own: a terminal's Ctrl-C is for us, and lets the commands that run end.
        with subprocess.Popen(
            self._command, shell=True, stdin=subprocess.PIPE, env=os.environ | place, process_group=0
        ) as running:
            self._running.add(running)
            try:
                running.communicate(given)
            finally:
                self._running.discard(running)
        if running.returncode == 0:
            self.done += 1
            return
        self.failed += 1
        message.nack()
        say(f"{message.position}, attempt {message.attempt}: the command exited with {running.returncode}")
        if running.returncode in (NO_SHELL_COMMAND, NOT_EXECUTABLE):
            say("hint: it may not exist, or not be executable; --exec takes a shell command")

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Make Ctrl-C act as SIGTERM; pass a second one on to the commands that are still running."""
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN:
            yield
            return
        is_ending = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal is_ending
            if not is_ending:
                is_ending = True
                signal.raise_signal(signal.SIGTERM)
                return
            for running in tuple(self._running):
                if running.returncode is None:
                    with suppress(OSError):
                        os.killpg(running.pid, signal.SIGINT)

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def execute(subscriber: Subscriber, command: str, concurrency: int) -> None:
    """Run a command for each message until a signal arrives; commands that are running then finish."""
    commands = Commands(command)
    # A signal that is ignored (nohup) stays ignored.
    heard = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    with subscriber:
        say(f"following {subscriber.id}; Ctrl-C ends this once the running commands have finished")
        say("hint: a second Ctrl-C is passed to the commands")
        with commands.interrupted():
            subscriber.process(commands.handle, concurrency=concurrency, drain_on=heard)
    say(f"{commands.done:,} done, {commands.failed:,} failed")
    raise typer.Exit(0)
