"""Compare our CEL with another implementation over generated expressions.

``python -m tests.fuzz.cel_differential PROGRAM --seed 1 --each 30 --free 4000`` writes
random expressions by type from the declared functions, evaluates them here and in
PROGRAM, and prints the number and the kinds of differences; the rows are in ``--out``.

PROGRAM is not a part of this project. It is a few lines of Go around cel-go and the
libraries of the release to compare with, in the environment that Kyverno's compiler of
ValidatingPolicies makes (variables ``object`` and ``x``, both dyn). It reads a line of
JSON for each expression, ``{"e": expression, "v": the JSON of the variables}``, and
answers with a line of JSON each: ``c`` (the checker's errors), ``p`` (the error of
making the program), ``e`` (the error of the evaluation) or ``v`` (the value as in
``tests/unit/expr_cel/outcome.py``), and ``x`` if it panicked.

Accepted differences are in docs/differences.md, "Expressions in CEL"; the findings are
in ``tests/unit/expr_cel/recorded.jsonl``, with the real program's results.
"""
