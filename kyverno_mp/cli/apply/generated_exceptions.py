"""Write a PolicyException for each failure, for a person to review and apply.

Room: cli. Takes: Responses. Gives: YAML or JSON text. Next: apply.
Source: docs/behaviour/cli 10
(generate-exceptions).
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.cli.apply.report import report_word
from kyverno_mp.cli.output.yaml_text import dump
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.result import RuleResult
from kyverno_mp.values.go.duration import duration_text, parse_duration
from kyverno_mp.values.jsonvalue import Json

_TTL_LABEL: Final = "cleanup.kyverno.io/ttl"
_AUTOGEN: Final = "autogen-"


def render_exceptions(
    responses: Sequence[Response], *, audit_warn: bool, ttl: str, output_format: str
) -> str:
    """Return all exceptions, each after a ``---`` line."""
    label = _label(ttl)
    parts = []
    for exception in _exceptions(responses, label, audit_warn=audit_warn):
        if output_format == "json":
            document = json.dumps(exception, separators=(",", ":"), ensure_ascii=False)
        else:
            document = dump(exception)
        parts.append(f"---\n{document}\n")
    return "".join(parts)


def _label(ttl: str) -> str:
    """Return the TTL label's value, "" for no label."""
    lasting = parse_duration(ttl) or 0
    return duration_text(lasting) if lasting > 0 else ""


def _exceptions(
    responses: Sequence[Response], ttl: str, *, audit_warn: bool
) -> Iterator[dict[str, Json]]:
    for response in responses:
        # KYVERNO: namespaced policies are skipped (docs/behaviour/cli 10).
        if response.policy.written_namespace:
            continue
        for rule in response.results:
            if report_word(response, rule, audit_warn=audit_warn) == "fail":
                yield _exception(response, rule, ttl)


def _exception(response: Response, rule: RuleResult, ttl: str) -> dict[str, Json]:
    resource = response.resource
    kind, name = str(resource.get("kind", "")), metadata_text(resource, "name")
    namespace = metadata_text(resource, "namespace")
    kinds, names, rules = [kind], [name], [rule.rule]
    if rule.rule.startswith(_AUTOGEN):
        names.append(f"{name}-*")
        bare = rule.rule.removeprefix(_AUTOGEN)
        if kind == "CronJob":
            bare = bare.removeprefix("cronjob-")
            kinds.append("Job")
            rules.append(_AUTOGEN + bare)
        kinds.append("Pod")
        rules.append(bare)
    resources: dict[str, Json] = {"kinds": kinds, "names": names}
    if namespace:
        resources["namespaces"] = [namespace]
    metadata: dict[str, Json] = {
        "name": f"{response.policy.name}-{rule.rule}-{namespace}-{name}"
    }
    if ttl:
        metadata["labels"] = {_TTL_LABEL: ttl}
    target = {"policyName": response.policy.name, "ruleNames": rules}
    spec: dict[str, Json] = {
        "exceptions": [target],
        "match": {"all": [{"resources": resources}]},
    }
    controls = _controls(rule)
    if controls:
        spec["podSecurity"] = controls
    return {
        "apiVersion": "kyverno.io/v2beta1",
        "kind": "PolicyException",
        "metadata": metadata,
        "spec": spec,
    }


def _controls(rule: RuleResult) -> list[dict[str, Json]]:
    """Return the pod security controls that failed; images without tag or digest."""
    try:
        checks = json.loads(rule.properties.get("controlsJSON", "[]"))
    except ValueError:
        return []
    controls: list[dict[str, Json]] = []
    for check in checks if isinstance(checks, list) else []:
        control: dict[str, Json] = {"controlName": check.get("Name", "")}
        images = [_any_tag(str(image)) for image in check.get("Images") or []]
        if images:
            control["images"] = images
        controls.append(control)
    return controls


def _any_tag(image: str) -> str:
    """Replace the tag or digest by ``*``: ``nginx:1`` becomes ``nginx:*``."""
    name, at, _ = image.partition("@")
    head, slash, last = name.rpartition("/")
    bare, colon, _ = last.partition(":")
    return f"{head}{slash}{bare}{colon or at}*"
