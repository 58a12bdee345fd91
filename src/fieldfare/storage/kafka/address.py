"""The address of a topic: ``kafka://HOST:PORT[,HOST:PORT...]/TOPIC[?OPTIONS]``.

The option ``config`` names a file of librdkafka properties for everything else that a connection needs,
secrets in particular: one ``name=value`` per line, in which ``${env:NAME}`` stands for an environment
variable. Addresses appear in logs and errors; the file's contents never do.
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
    """The address of a Kafka topic.

    Parameters
    ----------
    brokers
        One or more of the cluster's brokers: ``HOST:PORT``, separated by commas.
    topic
        Name of the topic.
    partitions, replication
        Partitions and replicas of a topic that is created because it does not exist. If `partitions` is
        None, a missing topic is an error.
    config
        Path of a file of further librdkafka properties.
    """

    brokers: str
    topic: str
    partitions: int | None = None
    replication: int = 1
    config: str | None = None

    @classmethod
    def parse(cls, url: str, what: str) -> KafkaAddress:
        """Parse an address from a URL; ValueError, which names `what` it is for, if it is invalid."""
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
        """The address as a URL with its options."""
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
        """Return the properties in the `config` file; ValueError, which names no value, if it is invalid."""
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
