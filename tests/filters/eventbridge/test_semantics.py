"""Random patterns over random events: filter, naive interpreter, normal form and index agree."""

from __future__ import annotations

import json
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.filters.evaluator import event_getter
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

from .. import naive as naive_expressions
from . import naive
from .generators import Generator

generators = st.integers(0, 2**32).map(lambda seed: Generator(random.Random(seed)))


@settings(max_examples=drawn(200))
@given(generators)
def test_a_filter_agrees_with_the_naive_interpreter(generator: Generator) -> None:
    pattern = generator.pattern()
    compiled = compile_filter(pattern, "eventbridge")
    form = compiled.normal_form
    for _ in range(8):
        event = generator.event()
        expected = naive.matches(pattern, event)
        assert compiled.matches(event) is expected, (pattern, event)
        assert (compiled.evaluate(event).value is True) is expected
        assert compiled.decides(lambda path, event=event: event_getter(path)(event)) is expected
        fitting = naive_expressions.candidates(form, event)
        assert fitting or not expected, (pattern, event)
        assert expected or not any(conjunction.exact for conjunction in fitting), (pattern, event)


@settings(max_examples=drawn(6))
@given(generators)
def test_the_index_agrees_with_the_naive_interpreter(generator: Generator) -> None:
    patterns = [generator.pattern() for _ in range(20)]
    events = [generator.event() for _ in range(30)]
    filters = [compile_filter(pattern, "eventbridge") for pattern in patterns]
    part = build_part(
        IndexEntry(n, n, 0, OPEN_END, f.normal_form, f.text, f.dialect) for n, f in enumerate(filters)
    )
    payload = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    columns = decode_json_lines(payload, len(events), part.paths)
    found = Index((part,)).match(columns, np.zeros(len(events), np.int64)).lists()
    assert found == [[n for n, p in enumerate(patterns) if naive.matches(p, event)] for event in events]
