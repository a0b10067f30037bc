"""Every bound of the program, each with its reason.

Room: limits (below every other). Units stand last in the names. A bound that an
operator may change has a setting in ``settings`` whose default is the value here.
"""

BODY_BYTES_MAX = 10 * 1024 * 1024
"""An AdmissionReview: etcd stores at most 1.5 MiB an object and a review carries the
object twice plus managed fields; controller-runtime allows 7 MiB; we leave room."""

JSON_DEPTH_MAX = 512
"""Nesting of a review or a policy. Kubernetes objects stay below 60; beyond a few
thousand a recursive walk would exhaust the C stack."""

EXPRESSION_TEXT_BYTES_MAX = 64 * 1024
"""One JMESPath or template text; the longest seen in public policies is below 4 KiB."""

EXPRESSION_DEPTH_MAX = 200
"""Nesting of one expression's syntax tree; guards the recursive linker."""

EXPRESSION_STEPS_MAX = 1_000_000
"""Elements visited and functions called by all expressions of one rule on one request;
about half a second of one core."""

EXPRESSION_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of text that the expressions of one rule may build on one request."""

CONTEXT_BYTES_MAX = 2 * 1024 * 1024
"""Kyverno's maxContextSize: cumulative size of context entries (engine.md 1.8)."""

SUBSTITUTION_ROUNDS_MAX = 64
"""Re-scans of one string for variables (engine.md 3.1 step 9); a value that contains
its own variable would otherwise never end."""

PARSE_CACHE_ENTRIES_MAX = 4096
"""Memoised parses of expressions and patterns that are known only at run time."""

REQUEST_TIMEOUT_S_MAX = 30.0
"""The API server never waits longer for a webhook."""

SUBSTITUTION_DEPTH_MAX = 256
"""Nesting of a document with variables, the data that its variables return included;
each level is one Python frame of a recursive walk, and the interpreter allows 1,000."""

KIND_MEMO_ENTRIES_MAX = 1024
"""Kinds remembered per list of kind selectors; a large cluster serves a few hundred."""
