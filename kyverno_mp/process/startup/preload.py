"""Import before the fork the modules that the engine otherwise imports lazily.

Room: process. Takes: Settings. Gives: loaded modules, which all roles share.
Next: process/serve.py.

The command line starts without these libraries, because most of its runs do not need
them. A worker must not load them during a review, nor have its own copy.
"""

import importlib
from typing import Final

from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import tracing
from kyverno_mp.values.typed.schema import built_in

LATE: Final = (
    "hashlib",
    "socket",
    "kyverno_mp.compiler.admission_policy",
    "kyverno_mp.compiler.rules.cel",
    "kyverno_mp.expr.assertion.parse",
    "kyverno_mp.expr.cel.catalogue",
    "kyverno_mp.expr.jmespath.certificate_document",
    "kyverno_mp.expr.jmespath.external_url",
    "kyverno_mp.expr.jmespath.functions.calls",
    "kyverno_mp.expr.jmespath.parse",
    "kyverno_mp.expr.jmespath.yaml_text",
    "kyverno_mp.policy.reading.yaml_documents",
    "kyverno_mp.program.bodies.assertion",
    "kyverno_mp.program.bodies.cel",
    "kyverno_mp.program.bodies.cel_conditions",
    "kyverno_mp.program.bodies.manifests",
    "kyverno_mp.program.bodies.pod_security",
    "kyverno_mp.program.context.cel_reads",
    "kyverno_mp.program.images.outcomes",
    "kyverno_mp.program.matching.exceptions",
    "kyverno_mp.values.cron",
)
"""Modules that functions of the engine import when they are called."""


def preload(settings: Settings) -> None:
    """Import all of them, and create the types that threads share."""
    for name in LATE:
        importlib.import_module(name)
    tracing.load(settings)
    built_in()
