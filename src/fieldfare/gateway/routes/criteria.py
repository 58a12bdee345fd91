"""The query parameters that find subscriptions: by text, owner and labels."""

from __future__ import annotations

from starlette.requests import Request

from fieldfare.gateway.labels import KEY_RULE, VALUE_RULE, is_label_key, is_printable
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import query_text
from fieldfare.model import LABEL_VALUE_MAX, OWNER_MAX
from fieldfare.storage.registry import OWNER_KEY, Criteria

WANTED_MAX = 8
"""Maximum labels that one list asks for; more are refused, as each is a look-up for each subscription."""

SEARCH_MAX_CHARS = 200
"""Maximum characters of a text that is searched for; a longer one is refused."""


def query_criteria(request: Request) -> Criteria:
    """Return what a list of subscriptions asks for; raise Problem 400 for an invalid parameter."""
    text = query_text(request, "search")
    if text is not None and not 1 <= len(text) <= SEARCH_MAX_CHARS:
        raise _bad("search", f"search must be 1 to {SEARCH_MAX_CHARS} characters.")
    wanted: list[tuple[str, str | None]] = []
    owner = query_text(request, "owner")
    if owner is not None:
        if not (owner and is_printable(owner, OWNER_MAX)):
            raise _bad("owner", f"owner must be a text of 1 to {OWNER_MAX} printable characters.")
        wanted.append((OWNER_KEY, owner))
    asked = list(dict.fromkeys(request.query_params.getlist("label")))
    if len(asked) > WANTED_MAX:
        raise _bad("label", f"The request asks for {len(asked)} labels; the maximum is {WANTED_MAX}.")
    for each in asked:
        key, has_value, value = each.partition("=")
        if not is_label_key(key) or not is_printable(value, LABEL_VALUE_MAX):
            detail = f"label must be key=value, or key: a key is {KEY_RULE}, a value {VALUE_RULE}."
            raise _bad("label", detail)
        wanted.append((key, value if has_value else None))
    return Criteria(text, tuple(wanted))


def _bad(name: str, detail: str) -> HttpProblem:
    return HttpProblem(400, "bad-parameter", detail, parameter=name)
