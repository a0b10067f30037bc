"""The sets of policies that perf/apiserver.py can measure.

``vpol-pss`` and ``combined`` are scenarios of Kyverno's own benchmark of policies in
CEL (docs/behaviour/v1.19.md 10): the Pod Security policies as ValidatingPolicies, and a
ValidatingPolicy with three checks beside a MutatingPolicy with two patches.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from perf.cluster import documents
from perf.language import validating_policies

_COMBINED: Final = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: moderate-checks}
spec:
  validationActions: [Deny]
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  variables:
  - {name: labels, expression: "object.metadata.?labels.orValue({})"}
  validations:
  - {expression: "variables.labels.size() > 0", message: labels are required}
  - {expression: "'app' in variables.labels", message: the label app is required}
  - expression: "variables.labels[?'env'].orValue('dev') in ['dev', 'test', 'prod']"
    message: the label env is unknown
---
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: moderate-patches}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{metadata: Object.metadata{
        labels: {'team': 'a', 'tier': 'web', 'cost-center': 'x'}}}
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{metadata: Object.metadata{annotations: {'example.com/by': 'kyverno'}}}
"""
SETS: Final[dict[str, Callable[[Path], list[dict[str, Any]]]]] = {
    "policies": documents,
    "vpol-pss": lambda _folder: validating_policies(),
    "combined": lambda _folder: list(yaml.safe_load_all(_COMBINED)),
}
"""Functions that return a set; the argument is the folder of ClusterPolicies."""
