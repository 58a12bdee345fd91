"""What pyproject.toml cannot say: the readme of a package, whose links do not lead to a checkout's files."""

import re
from pathlib import Path

from setuptools import setup

RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def packaged(readme: str) -> str:
    """The readme with relative links as text: an index would show them as links to nowhere."""

    def as_text(link: re.Match[str]) -> str:
        text, target = link.groups()
        return f"`{target}`" if text.strip("`") == target else f"{text} (`{target}` in the source)"

    return RELATIVE_LINK.sub(as_text, readme)


setup(
    long_description=packaged((Path(__file__).parent / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
