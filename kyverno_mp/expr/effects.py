"""Define the external effects of an evaluation.

Room: expr. Takes: nothing. Gives: the EFFECT bits, which functions declare in their
rows. Next: compiler/rules/effects.py combines them per rule; the webhook uses them to
choose where a review runs.
Source: docs/architecture.md 3 (effects decide scheduling).
"""

from typing import Final

EFFECT_PURE: Final = 0
EFFECT_SHARED: Final = 1
"""Reads shared data segments (ConfigMap, GlobalContextEntry)."""
EFFECT_CLUSTER: Final = 2
"""May call the API server, a service or a DNS server."""
EFFECT_REGISTRY: Final = 4
"""May call a registry."""

NO_GLOBAL_REFERENCE: Final = "globalReference is not allowed in namespaced policies"
NO_GLOBAL_CONTEXT: Final = "globalContext.* is not allowed in namespaced policies"
"""Why a namespaced policy cannot read GlobalContextEntries, which may hold data of any
namespace; the operator can open an entry to a namespace."""
