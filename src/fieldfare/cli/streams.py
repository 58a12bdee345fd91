"""Standard output and standard error, whatever they are: a terminal of any encoding, a closed pipe."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


def speak_any_encoding() -> None:
    """Let no character fail: what the terminal's encoding lacks is written with a backslash."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def read_arguments() -> None:
    """Take arguments that the locale's encoding cannot say, as ASCII in a cron job, for UTF-8."""
    for place, argument in enumerate(sys.argv):
        if not argument.isascii():
            with suppress(UnicodeError):
                argument.encode()  # fails where bytes were not understood
                continue
            with suppress(UnicodeError):
                sys.argv[place] = os.fsencode(argument).decode()


def write_bytes(content: bytes) -> None:
    """Write UTF-8 to standard output: JSON is that, whatever the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)


def finish_output() -> None:
    """Write what is still waiting; that the reader has gone (``| head``) is no error, a full disk is."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")
        sys.exit(1)


def discard_output() -> None:
    """Let nobody write to standard output any more, so that Python does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
