"""No value of the chart is without effect, and no name of Kyverno's chart is unknown.

A failure means: a user sets a value, Helm accepts it, and nothing happens.
"""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy import chart, foreign
from tests.packages.rendered import documents_of
from tests.packages.test_chart import CHART, KUBERNETES

pytestmark = pytest.mark.timeout(1200)
Json = Any
LEAVES: Final = (Path(__file__).parent / "kyverno-values.txt").read_text().split()
"""The paths of the values of Kyverno's chart, 3.8.2 and 3.9.0."""
VALUES: Final[Json] = yaml.safe_load((CHART / "values.yaml").read_text())
ON: Final[Json] = {
    "crds": {"install": False},
    "split": True,
    "imagePullSecrets": {"s": {"registry": "r", "username": "u", "password": "p"}},
    "prometheusRule": {"enabled": True},
    "grafana": {"enabled": True, "grafanaDashboard": {"create": True}},
    "dashboard": {
        "enabled": True,
        "tokenSecret": "t",
        "ingressFrom": [{"podSelector": {}}],
    },
    "notifications": {"urlSecret": "t"},
    "recording": {"enabled": True},
    "admissionController": {
        "autoscaling": {"enabled": True, "reviewsMetric": "m"},
        "certManager": {"enabled": True},
    },
    "authzServer": {"enabled": True},
    **{pool: {} for pool in chart.POOLS},
}
"""Everything that other values configure."""
for _name in ("admissionController", *chart.POOLS):
    ON[_name]["serviceMonitor"] = {"enabled": True, "secure": True}
for _name in ("admissionController", "authzServer", *chart.POOLS):
    ON[_name]["hostNetwork"] = True
    ON[_name]["dnsPolicy"] = "ClusterFirstWithHostNet"
    ON[_name]["tracing"] = {"enabled": True, "address": "a", "creds": "c"}
    ON[_name]["metering"] = {
        "config": "grpc",
        "creds": "c",
        "secure": True,
        "tlsSecret": "t",
    }
SHADOWED: Final = (
    *("global.imagePullSecrets", "global.tolerations", "global.priorityClassName"),
    *("global.nodeSelector", "global.extraEnvVars", "global.image.registry"),
    *("global.caCertificates.data", "global.caCertificates.volume"),
)
"""Values that act where a component has no value of its own: tested one by one."""
NOT_SHOWN: Final = frozenset(
    {
        # It has many effects, and fails while the other controllers have values.
        "split",
        # Definitions take long to render; tests/packages/test_chart.py renders them.
        *("crds.install", "crds.annotations", "crds.customLabels"),
        # What other values of ON or of the same test replace.
        "admissionController.replicas",
        "features.disableCertManagerController.enabled",
        "admissionController.certManager.createSelfSignedIssuer",
        "config.resourceFiltersExclude",
        "config.resourceFiltersExcludeNamespaces",
    }
)
WITHOUT: Final = (
    *(".podDisruptionBudget.maxUnavailable", ".caCertificates.volume"),
    ".metering.config",
)
"""Values that another value of the same component replaces, or that are choices."""
OTHERS: Final[Json] = {
    "features.logging.format": "text",
    "admissionController.certManager.algorithm": "ECDSA",
    "imagePullSecrets": {"q9q": {"registry": "r", "username": "u", "password": "q"}},
    "features.globalContext.maxApiCallResponseLength": "q9q",
    "admissionController.autoscaling.maxReplicas": 29999,
    "authzServer.mode": "http",
    **{
        f"{name}.{value}": other
        for name in ("admissionController", "authzServer", *chart.POOLS)
        for value, other in (
            # One Secret for both collectors.
            ("tracing.creds", f"creds-of-{name.lower()}"),
            ("metering.creds", f"creds-of-{name.lower()}"),
        )
    },
}
"""Values that are not marked as the others are."""
NUMBERS: Final = (
    *("nodePort", "targetMemoryUtilizationPercentage"),
    *("backgroundScanWorkers", "tracing.port", "collectorPort"),
)


def leaves(value: Json, above: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the paths and defaults of all values."""
    for name, part in value.items():
        path = f"{above}.{name}" if above else name
        if isinstance(part, dict) and part and name not in chart.FREE:
            yield from leaves(part, path)
        else:
            yield path, part


def other(path: str, default: Json, number: int) -> tuple[Json, str]:
    """Return a value that is not the default, and the text that shows it."""
    mark = f"q{number}q"
    if path in OTHERS:
        value = OTHERS[path]
        return value, next(iter(value)) if isinstance(value, dict) else str(value)
    if isinstance(default, int) or path.endswith(NUMBERS):
        return 21000 + number, str(21000 + number)
    match default:
        case list():
            is_map = path.rpartition(".")[2].startswith(("extra", "image", "ingress"))
            return [{"name": mark}] if is_map else [mark], mark
        case dict():
            return {**default, "x": mark}, mark
    return mark, mark


def nested(path: str, value: Json) -> Json:
    name, _, rest = path.partition(".")
    return {name: nested(rest, value) if rest else value}


def rendered(
    helm: str, *values: Json, folder: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Render with the values in JSON, the last of which take precedence."""
    flags: list[str] = []
    for one in values:
        for name, part in one.items():
            flags += ["--set-json", f"{name}={json.dumps(part)}"]
    return subprocess.run(
        [helm, "template", "kyverno", str(folder), *KUBERNETES, *flags],
        capture_output=True,
        text=True,
        check=False,
    )


def merged(below: Json, above: Json) -> Json:
    """Return the values of both, as Helm merges them."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    kept = {name: merged(below[name], above[name]) for name in below if name in above}
    return {**below, **above, **kept}


def test_every_value_is_in_what_is_installed(helm: str) -> None:
    """All values that are no switches, each with a mark of its own."""
    values, marks = ON, {}
    for number, (path, default) in enumerate(leaves(VALUES)):
        is_left_out = path in {*SHADOWED, *NOT_SHOWN} or path.endswith(WITHOUT)
        if is_left_out or is_switch(path, default):
            continue
        value, marks[path] = other(path, default, number)
        values = merged(values, nested(path, value))
    assert len(marks) > 300
    done = rendered(helm, values)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + plain_secrets(done.stdout)
    assert [path for path, mark in marks.items() if mark not in shown] == []


def is_switch(path: str, default: Json) -> bool:
    """Return whether a value is true or false, or either if it is not null."""
    below = (".enabled", "skipResourceFilters", "allowInsecure")
    is_unset = path.endswith(below) or ".reporting." in path
    return isinstance(default, bool) or (default is None and is_unset)


def plain_secrets(text: str) -> str:
    """Return the text that the values of Secrets encode."""
    found = re.findall(r"[.]dockerconfigjson: (\S+)", text)
    return "".join(base64.b64decode(one).decode() for one in found)


def test_every_switch_changes_what_is_installed(helm: str) -> None:
    plain = rendered(helm, ON)
    assert plain.returncode == 0, plain.stderr
    switches = [
        (path, not (default is None or default))
        for path, default in leaves(VALUES)
        if is_switch(path, default) and path not in NOT_SHOWN
    ]
    given = [
        *((path, value and not _is_on(path)) for path, value in switches),
        *((path, other(path, _default_of(path), 1)[0]) for path in SHADOWED),
    ]
    for pool in ("admissionController", "authzServer", chart.POOLS[0]):
        given.append((f"{pool}{WITHOUT[0]}", 2))
        given.append((f"{pool}{WITHOUT[1]}", {"secret": {"secretName": "x"}}))
        given.append((f"{pool}{WITHOUT[2]}", "prometheus"))
    wrong = []
    for path, value in given:
        done = rendered(helm, merged(ON, nested(path, value)))
        if done.returncode != 0 or done.stdout == plain.stdout:
            wrong.append((path, done.stderr[:200]))
    assert wrong == []


def _default_of(path: str) -> Json:
    return dict(leaves(VALUES)).get(path)


def _is_on(path: str) -> bool:
    part: Json = ON
    for name in path.split("."):
        if not isinstance(part, dict) or name not in part:
            return False
        part = part[name]
    return bool(part)


def is_known(path: str) -> bool:
    """Return whether a path is a value of this chart, or below one that is free."""
    part = VALUES
    for name in path.split("."):
        if not part:
            return True
        if name not in part:
            return False
        part = part[name]
        if name in chart.FREE:
            return True
    return True


def class_of(path: str) -> str:
    """Return what happens to a value of Kyverno's chart, "" if nothing is known."""
    if path in foreign.REFUSED:
        return "refused"
    if foreign.harmless_above(path):
        return "harmless"
    return "honoured" if is_known(path) else ""


def test_every_value_of_kyvernos_chart_has_a_class() -> None:
    """A new one is honoured, refused with a reason, or said to be harmless."""
    assert len(LEAVES) >= 724
    assert [path for path in LEAVES if not class_of(path)] == []


def test_the_table_names_only_values_of_kyvernos_chart() -> None:
    """A typing error in the table would not refuse anything."""
    later = ("policyReportsCleanup", "crds.groups.policies.namespacedgenerating")
    for path in (*foreign.HARMLESS, *foreign.REFUSED):
        if path.startswith(later):
            continue
        assert any(
            leaf == path or leaf.startswith(f"{path}.") or path.startswith(f"{leaf}.")
            for leaf in LEAVES
        ), path
        assert not (path in foreign.REFUSED and is_known(path)), path


def test_every_refused_value_is_named_with_its_reason(helm: str) -> None:
    """A neutral one is accepted."""
    rows = sorted(foreign.REFUSED.items())
    bare = {"crds": {"install": False}}
    neutral = bare
    for path, row in rows:
        neutral = merged(neutral, nested(path, json.loads(row.neutral[-1])))
    accepted = rendered(helm, neutral)
    assert accepted.returncode == 0, accepted.stderr
    given = [merged(bare, nested(path, "wrong")) for path, _ in rows]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda values: rendered(helm, values), given))
    for (path, row), one in zip(rows, done, strict=True):
        assert f"{path} is not supported: {row.why}" in one.stderr, one.stderr


@pytest.mark.parametrize("path", ["test.sleep", "reportsServer.waitForReady"])
def test_harmless_value_is_named_in_the_notes(
    helm: str, tmp_path: Path, path: str
) -> None:
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("crds-files"))
    # Helm shows notes only after an installation.
    notes = copy / "templates" / "NOTES.txt"
    shown = copy / "templates" / "notes.yaml"
    text = '{{ include "notes" . | toJson }}'
    shown.write_text(
        f'{{{{ define "notes" }}}}{notes.read_text()}{{{{ end }}}}'
        f"{{kind: N, metadata: {{name: n}}, text: {text}}}"
    )
    done = rendered(helm, nested(path, 1), folder=copy)
    assert done.returncode == 0, done.stderr
    text = documents_of(done.stdout)["N", "n"]["text"]
    assert f"  {foreign.harmless_above(path)}: " in text
