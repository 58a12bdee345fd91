"""The ``cesql`` dialect: the CloudEvents SQL Expression Language, version 1.0.0.

A text is read by ``lexer`` and ``parser`` into the tree of ``syntax``. ``evaluate`` computes the tree's
value and its errors as the specification says; ``translate`` turns it into the internal expression
that matching runs. ``values`` and ``builtins`` hold what both need: types, casts and functions.
Section numbers in these modules are those of the specification (cesql/spec.md, v1.0.0).
"""
