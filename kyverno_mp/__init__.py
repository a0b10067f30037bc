"""kyverno-mp: the package with its version."""

__version__ = "0.1.0"
UPSTREAM_VERSION = "1.18.2"
"""The version of Kyverno whose results and messages this version follows."""
