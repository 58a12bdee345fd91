"""Arguments and standard streams, whatever they are: a terminal of any encoding, a closed pipe."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


def use_utf8() -> None:
    """Start this program again in Python's UTF-8 mode where the locale is ASCII: file names would fail.

    Python does so by itself in the locale C, unless an environment variable forbids it. Processes that this
    one starts inherit the mode.
    """
    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        with suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def speak_any_encoding() -> None:
    """Write characters that the terminal's encoding lacks as backslash escapes instead of failing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # Closed by the parent process.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def read_arguments() -> None:
    """Decode arguments as UTF-8 if the locale's encoding cannot represent them (ASCII in a cron job)."""
    for place, argument in enumerate(sys.argv):
        if not argument.isascii():
            with suppress(UnicodeError):
                argument.encode()  # Fails for surrogate escapes: bytes that could not be decoded.
                continue
            with suppress(UnicodeError):
                sys.argv[place] = os.fsencode(argument).decode()


def write_bytes(content: bytes) -> None:
    """Write bytes to standard output: JSON is UTF-8, whatever the terminal's encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)


def finish_output() -> None:
    """Flush standard output; a closed pipe (``| head``) is not an error, a full disk is."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")
        sys.exit(1)


def discard_output() -> None:
    """Redirect standard output to the null device, so that Python reports no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
