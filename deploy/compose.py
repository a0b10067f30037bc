"""Write the manifests and the base for overlays from their parts.

Takes: deploy/parts, config/*.yaml, config/crds. Gives: install.yaml,
install-without-crds.yaml, install-split.yaml, kustomization.yaml and
prometheusrule.yaml beside this file. Run as ``python deploy/compose.py`` after a change
of a part; a test checks that they are up to date. Next: deploy/chart.py builds the Helm
chart from the same documents. May touch: those files.

Definitions come last, so that readers of a manifest first find the running parts.
"""

import re
import textwrap
from pathlib import Path
from typing import Final

import yaml

from kyverno_mp import __version__

_HERE: Final = Path(__file__).resolve().parent
_CONFIG: Final = _HERE.parent / "config"
_COMMON: Final = (
    _HERE / "parts" / "webhook-owner.yaml",
    _HERE / "parts" / "user-roles.yaml",
    _CONFIG / "kyverno.yaml",
    _CONFIG / "kyverno-metrics.yaml",
    _HERE / "parts" / "services.yaml",
    _HERE / "parts" / "availability.yaml",
)
_DEPLOYMENT: Final = _HERE / "parts" / "deployment.yaml"
_NAMESPACE: Final = _HERE / "parts" / "namespace.yaml"
_ADMISSION: Final = _HERE / "parts" / "admission-rbac.yaml"
_BACKGROUND: Final = _HERE / "parts" / "background-rbac.yaml"
_BACKGROUND_DEPLOYMENT: Final = _HERE / "parts" / "background-deployment.yaml"
_CLEANUP: Final = _HERE / "parts" / "cleanup-rbac.yaml"
_CLEANUP_DEPLOYMENT: Final = _HERE / "parts" / "cleanup-deployment.yaml"
_TOKENS: Final = _HERE / "parts" / "pool-tokens.yaml"
_REPORTS: Final = _HERE / "parts" / "reports-rbac.yaml"
_REPORTS_DEPLOYMENT: Final = _HERE / "parts" / "reports-deployment.yaml"
_LABELS: Final = re.compile(r"^( *)labels:\n((?:\1  \S.*\n)+)", re.MULTILINE)
_OURS: Final = "app.kubernetes.io/part-of: kyverno"
_NAME_LABEL: Final = "app.kubernetes.io/name: kyverno-mp"
_VERSION_LABEL: Final = "app.kubernetes.io/version: "
_VARIABLE: Final = "$(KYVERNO_MP_OWN_NAMESPACE)"
_POOLS_HERE: Final = """\
            - name: KYVERNO_MP_CLEANUP_WORKERS
              value: "1"
            - name: KYVERNO_MP_BACKGROUND_WORKERS
              value: "4"
            - name: KYVERNO_MP_REPORTS_WORKERS
              value: "1"
"""
_POOLS_ELSEWHERE: Final = """\
            - name: KYVERNO_MP_CLEANUP_WORKERS
              value: "0"
            - name: KYVERNO_MP_BACKGROUND_WORKERS
              value: "0"
            - name: KYVERNO_MP_BACKGROUND_ELSEWHERE
              value: "true"
            - name: KYVERNO_MP_REPORTS_WORKERS
              value: "0"
            - name: KYVERNO_MP_REPORTS_ELSEWHERE
              value: "true"
"""
_MADE: Final = "# Made by `python deploy/compose.py` from deploy/parts and config.\n"
_ALL_IN_ONE: Final = """\
# kyverno-mp, all in one: `kubectl apply -f install.yaml`; docs/install.md.
# One Deployment runs every role: admission, background, reports, cleanup.
"""
_SPLIT: Final = """\
# kyverno-mp, a Deployment for each role: `kubectl apply -f install-split.yaml`.
# The roles are admission, background, reports and cleanup.
"""


_WITHOUT: Final = """\
# kyverno-mp without its CustomResourceDefinitions, so that deleting what this manifest
# created keeps them, and all policies. Apply config/crds first.
"""
_OVERLAID: Final = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - install.yaml
patches:
  - target:
      kind: ConfigMap
      name: kyverno
    patch: |-
      - op: replace
        path: /data/resourceFilters
        value: >-
          {filters}
      - op: replace
        path: /data/webhooks
        value: >-
          {webhooks}
vars:
  - name: {variable}
    objref:
      apiVersion: apps/v1
      kind: Deployment
      name: kyverno-admission-controller
    fieldref:
      fieldpath: metadata.namespace
configurations:
  - kustomize-variables.yaml
"""
_RULE: Final = """\
# Alerts for clusters with the Prometheus operator; not part of install.yaml, whose API
# they need. Made by `python deploy/compose.py` from deploy/monitoring/alerts.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kyverno-mp
  namespace: kyverno
  labels:
    app.kubernetes.io/component: monitoring
    app.kubernetes.io/instance: kyverno
    app.kubernetes.io/part-of: kyverno
spec:
  groups:
"""
_BASE: Final = """\
# The base for overlays: your registry, replicas and ConfigMaps stand apart, and an
# upgrade keeps them. An overlay may set another namespace; the filters of the ConfigMap
# follow it through the variable below, which kustomize resolves after all overlays.
"""


def install() -> str:
    """Return the text of install.yaml."""
    accounts = (_NAMESPACE, _ADMISSION, _BACKGROUND, _REPORTS, _CLEANUP, _TOKENS)
    return _join(_ALL_IN_ONE, (*accounts, *_COMMON, _DEPLOYMENT, *_definitions()))


def install_without_crds() -> str:
    """Return the text of install-without-crds.yaml."""
    accounts = (_NAMESPACE, _ADMISSION, _BACKGROUND, _REPORTS, _CLEANUP, _TOKENS)
    return _join(_WITHOUT, (*accounts, *_COMMON, _DEPLOYMENT))


def install_split() -> str:
    """Return the text of install-split.yaml."""
    accounts = (_NAMESPACE, _ADMISSION, _BACKGROUND, _REPORTS, _CLEANUP)
    deployments = (
        _DEPLOYMENT,
        _BACKGROUND_DEPLOYMENT,
        _REPORTS_DEPLOYMENT,
        _CLEANUP_DEPLOYMENT,
    )
    parts = (*accounts, *_COMMON, *deployments, *_definitions())
    text = _join(_SPLIT, parts)
    assert text.count(_POOLS_HERE) == 1
    return text.replace(_POOLS_HERE, _POOLS_ELSEWHERE)


def kustomization() -> str:
    """Return the text of kustomization.yaml."""
    config = yaml.safe_load((_CONFIG / "kyverno.yaml").read_text())["data"]
    filters = config["resourceFilters"].replace(",kyverno,", f",{_VARIABLE},")
    webhooks = config["webhooks"].replace('"kyverno"', f'"{_VARIABLE}"')
    return (_BASE + _MADE + _OVERLAID).format(
        filters="\n          ".join(filters.split()),
        webhooks=webhooks,
        variable=_VARIABLE.strip("$()"),
    )


def prometheus_rule() -> str:
    """Return the text of prometheusrule.yaml."""
    groups = (_HERE / "monitoring" / "alerts.yaml").read_text()
    return _RULE + textwrap.indent(groups.partition("groups:\n")[2], "  ")


def _definitions() -> tuple[Path, ...]:
    return tuple(sorted((_CONFIG / "crds").glob("*.yaml")))


def _join(head: str, parts: tuple[Path, ...]) -> str:
    texts = (
        _labelled(file.read_text().removeprefix("---\n")).rstrip("\n") for file in parts
    )
    return head + _MADE + "---\n" + "\n---\n".join(texts) + "\n"


def _labelled(text: str) -> str:
    """Add the recommended labels for name and version to our objects.

    Selectors are not changed, because a Deployment's selector is immutable.
    """

    def add(found: re.Match[str]) -> str:
        space, lines = found[1] + "  ", found[2]
        if _OURS not in lines:
            return found[0]
        lines += f"{space}{_NAME_LABEL}\n"
        if _VERSION_LABEL not in lines:
            lines += f"{space}{_VERSION_LABEL}{__version__}\n"
        return f"{found[1]}labels:\n{lines}"

    return _LABELS.sub(add, text)


def main() -> None:
    """Write the files."""
    (_HERE / "install.yaml").write_text(install())
    (_HERE / "install-without-crds.yaml").write_text(install_without_crds())
    (_HERE / "install-split.yaml").write_text(install_split())
    (_HERE / "kustomization.yaml").write_text(kustomization())
    (_HERE / "prometheusrule.yaml").write_text(prometheus_rule())


if __name__ == "__main__":
    main()
