"""Help for authors of filters: check, explain, trace, convert."""

from fieldfare.filters.help.cautions import Caution
from fieldfare.filters.help.checking import Check, check, use_cautions
from fieldfare.filters.help.conversion import convert
from fieldfare.filters.help.explanation import (
    ConjunctionUse,
    Explanation,
    PredicateUse,
    SampleFigures,
    explain,
)
from fieldfare.filters.help.statements import Statement
from fieldfare.filters.help.tracing import Trace, TracedReading, TracedStep, trace

__all__ = [
    "Caution",
    "Check",
    "ConjunctionUse",
    "Explanation",
    "PredicateUse",
    "SampleFigures",
    "Statement",
    "Trace",
    "TracedReading",
    "TracedStep",
    "check",
    "convert",
    "explain",
    "trace",
    "use_cautions",
]
