"""Naive matching of topics, word by word, from the documentation of MQTT, NATS and AMQP 0-9-1."""

from __future__ import annotations


def mqtt(pattern: str, topic: str) -> bool:
    """MQTT 5.0, 4.7: ``#`` includes the parent level; wildcards at the start do not match ``$`` topics."""
    levels, names = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and levels[0] in ("+", "#"):
        return False
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index == len(names):
            return False
        if level != "+" and level != names[index]:
            return False
        if index == len(names) - 1 and levels[index + 1 :] == ["#"]:
            return True
    return len(levels) == len(names)


def nats(pattern: str, subject: str) -> bool:
    """NATS, "Subject-Based Messaging": ``*`` is one token, ``>`` one or more at the end."""
    tokens, names = pattern.split("."), subject.split(".")
    if tokens[-1] == ">":
        head = tokens[:-1]
        return len(names) > len(head) and all(t in ("*", n) for t, n in zip(head, names, strict=False))
    return len(tokens) == len(names) and all(t in ("*", n) for t, n in zip(tokens, names, strict=True))


def amqp(pattern: str, key: str) -> bool:
    """AMQP 0-9-1, 3.1.3.3: ``*`` is one word, ``#`` zero or more; an empty key has no words."""
    return _amqp(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _amqp(words: list[str], names: list[str]) -> bool:
    if not words:
        return not names
    first, *rest = words
    if first == "#":
        return any(_amqp(rest, names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and first in ("*", names[0]) and _amqp(rest, names[1:])
