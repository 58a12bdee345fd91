"""The ``cesql`` dialect: the CloudEvents SQL Expression Language, version 1.0.0.

``lexer`` and ``parser`` parse a text into the tree of ``syntax``. ``evaluate`` computes the tree's
value and its errors by the specification; ``translate`` turns it into the internal expression
that matching uses. Both use the types, casts and functions of ``values`` and ``builtins``.
Section numbers in these modules refer to the specification (cesql/spec.md, v1.0.0).
"""
