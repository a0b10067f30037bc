"""kyverno-mp: the package with its version."""

__version__ = "0.1.0"
