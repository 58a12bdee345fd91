"""The address of a topic: ``kafka://HOST:PORT[,HOST:PORT...]/TOPIC[?OPTIONS]``.

What a connection needs beyond that, secrets above all, stands in a file of librdkafka's properties, one
``name=value`` a line, which the option ``config`` names. ``${env:NAME}`` in a value is a variable of the
environment. An address is written in logs and errors; nothing of the file is.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")
_OPTIONS = {"config", "partitions", "replication"}


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """A topic, and how it is reached.

    Parameters
    ----------
    brokers
        Some of the cluster's brokers, ``HOST:PORT`` with commas between.
    topic
        Its name.
    partitions, replication
        A topic that does not exist is made with so many; without `partitions` that is an error.
    config
        A file of further properties.
    """

    brokers: str
    topic: str
    partitions: int | None = None
    replication: int = 1
    config: str | None = None

    @classmethod
    def parse(cls, url: str, what: str) -> KafkaAddress:
        """The address in a URL; ValueError, which names ``what`` it is of, for anything else."""
        form = f"the address of the {what} is kafka://HOST:PORT/TOPIC"
        scheme, separator, rest = url.partition("://")
        place, _, query = rest.partition("?")
        brokers, _, topic = place.partition("/")
        if "@" in place:
            raise ValueError(f"{form} without a password: name a file of properties with ?config=PATH")
        if scheme != "kafka" or not separator or not brokers or not _TOPIC.fullmatch(unquote(topic)):
            raise ValueError(f"{form}, not {url!r}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for name in options.keys() - _OPTIONS:
            raise ValueError(f"{form}; it has the options {', '.join(sorted(_OPTIONS))}, not {name!r}")
        numbers = {name: options[name] for name in ("partitions", "replication") if name in options}
        for name, text in numbers.items():
            if not text.isdecimal() or not 1 <= int(text) <= 10_000:
                raise ValueError(f"{form}; {name} is a number from 1 on, not {text!r}")
        return cls(
            brokers,
            unquote(topic),
            int(numbers["partitions"]) if "partitions" in numbers else None,
            int(numbers.get("replication", 1)),
            options.get("config"),
        )

    @property
    def url(self) -> str:
        """The address as text."""
        options = {
            name: value
            for name, value in (
                ("partitions", self.partitions),
                ("replication", self.replication if self.replication != 1 else None),
                ("config", self.config),
            )
            if value is not None
        }
        return f"{self}{'?' if options else ''}{urlencode(options, safe='/')}"

    def __str__(self) -> str:
        return f"kafka://{self.brokers}/{quote(self.topic)}"

    def properties(self) -> dict[str, str]:
        """What the connection's file says; ValueError, without any value, where it cannot be read."""
        if self.config is None:
            return {}
        try:
            lines = Path(self.config).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the properties in {self.config} cannot be read: {error}") from None
        found: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            name, separator, value = line.strip().partition("=")
            if not name or name.startswith("#"):
                continue
            if not separator:
                raise ValueError(f"{self.config}, line {number}: expected name=value")
            for variable in _VARIABLE.findall(value):
                if variable not in os.environ:
                    raise ValueError(f"{self.config}, line {number}: {variable} is not in the environment")
            found[name.strip()] = _VARIABLE.sub(lambda match: os.environ[match[1]], value.strip())
        return found
