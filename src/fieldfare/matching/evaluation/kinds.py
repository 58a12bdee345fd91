"""The kinds of computed values, in addition to those of ``matching.events.columns``.

No number is rounded silently: an inexact number carries its maximum error, and a comparison that depends on
the error evaluates to ASK.
"""

from __future__ import annotations

KIND_RATIO = 9
"""A fraction: the word is its numerator, the second word its positive denominator."""
KIND_NEAR = 10
"""A number near the float64 with the bits of the word; the second word is a float64, the maximum distance."""
KIND_ASK = 11
"""A number, or null: only Python can tell."""
KIND_ANY = 12
"""A value of any type, or null: only Python can tell."""
KINDS = 13
