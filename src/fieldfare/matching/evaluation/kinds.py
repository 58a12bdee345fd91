"""The kinds of computed values, beyond those of ``matching.events.columns``.

None of the numbers was rounded unnoticed: what cannot be kept exactly says how far it may be off, and a
comparison that this leaves open is answered by ASK.
"""

from __future__ import annotations

KIND_RATIO = 9
"""A fraction: the word is its numerator, the second word its denominator, which is positive."""
KIND_NEAR = 10
"""A number near the float64 whose bits are the word, at most the float64 of the second word away."""
KIND_ASK = 11
"""A number, or none: only Python can tell."""
KIND_ANY = 12
"""A value of any type, or none: only Python can tell."""
KINDS = 13
