"""``explain``: show the rules that the compiler computes from policies.

Room: cli. Takes: policy paths. Gives: a table (or JSON) of the computed rules: kinds,
action, effects, exceptions, features that this version does not evaluate.
May touch: files named by the user, standard output.
Over 400 lines: one function for each kind of policy, all of one shape.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table

from kyverno_mp.cli.lint.corrected.report import corrections
from kyverno_mp.cli.lint.served import left_out, refused_by_webhook, unserved
from kyverno_mp.cli.output.counted import counted
from kyverno_mp.cli.output.screen import one_line, say
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.compiled import (
    Compiled,
    compile_admission,
    compile_all,
    compile_authorizations,
    compile_cel,
    compile_images,
    compile_others,
)
from kyverno_mp.cli.sources.exceptions import load_exceptions
from kyverno_mp.cli.sources.folders import files_below, say_empty
from kyverno_mp.cli.sources.foreign import (
    foreign_kind,
    is_input_of_another_command,
    is_template,
)
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.compiler.rules.effects import effects_of
from kyverno_mp.errors import InputError
from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY, EFFECT_SHARED
from kyverno_mp.ir.admission_policy import (
    AdmissionPolicyIR,
    ConstraintsIR,
    ResourceRuleIR,
)
from kyverno_mp.ir.cel_policies import (
    AnyCelPolicyIR,
    GeneratingPolicyIR,
    MutatingPolicyIR,
)
from kyverno_mp.ir.cleanup import CleanupIR
from kyverno_mp.ir.image_policies import ImageBodyIR, ImageValidatingPolicyIR
from kyverno_mp.ir.match import FilterIR, KindIR
from kyverno_mp.ir.rules import CompiledPolicy, ExceptionIR, PolicyIR, RuleIR
from kyverno_mp.ir.validating_policy import (
    CelExceptionIR,
    ValidatingBodyIR,
    ValidatingPolicyIR,
)
from kyverno_mp.leader.servable import UNSUPPORTED, UNSUPPORTED_KIND
from kyverno_mp.policy.reading.load import load
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.ir.authorization import AuthorizationPolicyIR

_EFFECT_WORDS = (
    (EFFECT_SHARED, "reads shared data"),
    (EFFECT_CLUSTER, "calls the cluster"),
    (EFFECT_REGISTRY, "calls a registry"),
)
_RULE: Final[Mapping[str, Json]] = {
    "name": "",
    "body": "",
    "autogen": False,
    "kinds": [],
    "operations": [],
    "namespaces": [],
    "action": "",
    "overrides": False,
    "context": [],
    "effects": [],
    "exceptions": [],
    "notEvaluated": "",
}
"""The fields of a rule, in the order in which ``explain -o json`` prints them."""


def _kind_text(kind: KindIR) -> str:
    parts = [kind.group, kind.version, kind.kind]
    while len(parts) > 1 and parts[0] == "*":
        parts.pop(0)
    return "/".join([*parts, kind.subresource] if kind.subresource else parts)


def _kinds(filters: Sequence[FilterIR]) -> list[str]:
    return list(dict.fromkeys(_kind_text(k) for f in filters for k in f.kinds))


def _body(rule: RuleIR) -> str:
    validate = rule.validate
    if validate is None:
        return rule.rule_type
    for name, value in (
        ("assert", validate.assertion),
        ("podSecurity", validate.pod_security),
        ("deny", validate.deny),
        ("pattern", validate.pattern),
        ("anyPattern", validate.any_pattern),
        ("foreach", validate.foreach or None),
        ("cel", validate.cel),
        ("manifests", validate.manifests),
    ):
        if value is not None:
            return f"validate.{name}"
    return rule.unsupported or "validate"


def describe(compiled: CompiledPolicy) -> dict[str, Json]:
    """Return the policy as ``explain -o json`` prints it.

    Shape: ``{"policy": "p", "kind": "ClusterPolicy", "failurePolicy": "Fail", "rules":
    [{"name": "r", "body": "validate.pattern", "kinds": ["Pod"], ...}]}``.
    """
    return _described(
        compiled.policy, [_rule(compiled, rule) for rule in compiled.rules]
    )


def _described(policy: PolicyIR, rules: Iterable[Json]) -> dict[str, Json]:
    """Return a policy; a field that a rule lacks has its default."""
    return {
        "policy": policy.key,
        "kind": policy.kind,
        "failurePolicy": policy.failure_policy,
        "background": policy.background,
        "admission": policy.admission,
        "rules": [{**_RULE, "name": policy.name, **rule} for rule in rules],
    }


def _rule(compiled: CompiledPolicy, rule: RuleIR) -> dict[str, Json]:
    filters = rule.match.filters
    return {
        "name": rule.name,
        "body": _body(rule),
        "autogen": rule.name.startswith("autogen-"),
        "kinds": _kinds(filters),
        "operations": _each(f.operations for f in filters),
        "namespaces": _each(f.namespaces for f in filters),
        "action": rule.action.action or compiled.policy.action.action or "Audit",
        "overrides": bool(rule.action.overrides or compiled.policy.action.overrides),
        "context": [entry.name for entry in rule.context],
        "effects": _effects(rule.effects),
        "exceptions": _keys(rule.exceptions),
        "notEvaluated": rule.unsupported,
    }


def _effects(effects: int) -> list[str]:
    return [word for bit, word in _EFFECT_WORDS if effects & bit] or ["pure"]


def _keys(exceptions: Iterable[ExceptionIR | CelExceptionIR]) -> list[str]:
    return [exception.key for exception in exceptions]


def _parts(parts: Iterable[tuple[int, str]]) -> str:
    return ", ".join(counted(count, noun) for count, noun in parts if count)


def describe_admission(ir: AdmissionPolicyIR) -> dict[str, Json]:
    """Return an admission policy of the API server in the same format, as one rule."""
    rules = ir.constraints.rules if ir.constraints is not None else ()
    body = counted(len(ir.validations), "validation")
    if ir.mutations:
        body = counted(len(ir.mutations), "mutation")
    parts = _parts(
        [(len(ir.conditions), "matchCondition"), (len(ir.variables), "variable")]
    )
    bindings = [binding.name for binding in ir.bindings]
    rule = {
        "body": f"{body}, {parts}" if parts else body,
        "kinds": _resources(rules),
        "operations": _each(rule.operations for rule in rules),
        "action": f"bound by {', '.join(bindings)}" if bindings else "no binding",
        "effects": ["calls the cluster" if ir.param_kind[1] else "pure"],
    }
    return _described(ir.policy, [rule])


def describe_cleanup(ir: CleanupIR) -> dict[str, Json]:
    """Return a clean-up policy in the same format, as one rule."""
    rule = {
        "body": f"schedule {ir.schedule}",
        "kinds": _kinds(ir.match.filters),
        "namespaces": _own_namespace(ir.policy),
        "action": "delete",
        "context": [entry.name for entry in ir.context],
        "effects": _effects(
            effects_of((ir.match, ir.exclude, ir.context, ir.conditions))
        ),
    }
    return {**_described(ir.policy, [rule]), "failurePolicy": ""}


def _own_namespace(policy: PolicyIR) -> list[str]:
    return [policy.namespace] if policy.namespace else []


def describe_validating(
    ir: ValidatingPolicyIR | ImageValidatingPolicyIR,
) -> dict[str, Json]:
    """Return a ValidatingPolicy or ImageValidatingPolicy, each copy as one rule."""
    return _described(ir.policy, [_copy(ir, body) for body in ir.bodies])


def _copy(
    ir: ValidatingPolicyIR | ImageValidatingPolicyIR,
    body: ValidatingBodyIR | ImageBodyIR,
) -> dict[str, Json]:
    parts = [
        (len(body.validations), "validation"),
        (len(getattr(body, "attestors", ())), "attestor"),
        (len(body.conditions), "matchCondition"),
        (len(body.variables), "variable"),
        (len(body.annotations), "auditAnnotation"),
    ]
    rule = _cel_rule(ir, body.copy, body.constraints, _parts(parts))
    rule["action"] = ", ".join(ir.actions)
    if ir.is_json:
        rule["kinds"] = ["any JSON"]
    return rule


def describe_authorization(ir: "AuthorizationPolicyIR") -> dict[str, Json]:
    """Return a policy in evaluation mode HTTP or Envoy in the same format."""
    parts = [
        (len(ir.validations), "validation"),
        (len(ir.conditions), "matchCondition"),
        (len(ir.variables), "variable"),
    ]
    rule = {
        "body": _parts(parts),
        "kinds": [f"{ir.mode} requests"],
        "action": "the first answer",
        "effects": _effects(ir.effects),
        "exceptions": _keys(ir.exceptions),
    }
    described = _described(ir.policy, [rule])
    return {**described, "background": False, "admission": False}


def describe_cel(ir: AnyCelPolicyIR) -> dict[str, Json]:
    """Return any other policy in CEL in the same format."""
    rules = [_cel_rule(ir, *body) for body in _bodies(ir)]
    if isinstance(ir, MutatingPolicyIR):
        for rule, body in zip(rules, ir.bodies, strict=True):
            if body.constraints is None:
                rule["kinds"] = ["*"]
    return _described(ir.policy, rules)


def _bodies(ir: AnyCelPolicyIR) -> Iterator[tuple[str, ConstraintsIR | None, str]]:
    """Yield (name, constraints, description) of the policy and its autogen copies."""
    if isinstance(ir, MutatingPolicyIR):
        for body in ir.bodies:
            done = counted(len(body.mutations), "mutation")
            yield body.copy, body.constraints, done
    elif isinstance(ir, GeneratingPolicyIR):
        templates = sum(bool(generation.documents) for generation in ir.generations)
        counts = {"expression": len(ir.generations) - templates, "template": templates}
        parts = [counted(number, noun) for noun, number in counts.items() if number]
        yield "", ir.constraints, ", ".join(parts)
    else:
        yield "", ir.constraints, f"schedule {ir.schedule}"


def _cel_rule(
    ir: AnyCelPolicyIR | ValidatingPolicyIR | ImageValidatingPolicyIR,
    copy: str,
    constraints: ConstraintsIR | None,
    body: str,
) -> dict[str, Json]:
    rules = constraints.rules if constraints is not None else ()
    return {
        "name": f"autogen-{copy}" if copy else ir.policy.name,
        "body": body,
        "autogen": bool(copy),
        "kinds": _resources(rules),
        "operations": _each(rule.operations for rule in rules),
        "namespaces": _own_namespace(ir.policy),
        "effects": _effects(ir.effects),
        "exceptions": _keys(ir.exceptions),
    }


def _resources(rules: Sequence[ResourceRuleIR]) -> list[str]:
    """Return ``group/version/resource`` for the rules, without empty parts."""
    return _each(
        ["/".join(part for part in (group, version, resource) if part)]
        for rule in rules
        for group in rule.groups
        for version in rule.versions
        for resource in rule.resources
    )


def _each(lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(item for listed in lists for item in listed))


def _print_table(policies: list[dict[str, Json]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    for policy in policies:
        title = f"{policy['kind']} {policy['policy']}"
        if policy["failurePolicy"]:
            title = f"{title}  (failurePolicy {policy['failurePolicy']})"
        table = Table(title=title, title_justify="left")
        for name in (
            "rule",
            "body",
            "kinds",
            "operations",
            "action",
            "effects",
            "notes",
        ):
            table.add_column(name, overflow="fold")
        for rule in policy["rules"]:
            notes = []
            if rule["exceptions"]:
                notes.append("exceptions: " + ", ".join(rule["exceptions"]))
            if rule.get("notServed"):
                notes.append(rule["notServed"])
            elif rule["notEvaluated"]:
                notes.append("not evaluated: " + rule["notEvaluated"])
            table.add_row(
                rule["name"],
                rule["body"],
                ", ".join(rule["kinds"]) or "-",
                ", ".join(rule["operations"])
                or ("any" if policy["admission"] else "-"),
                rule["action"] + (" (overrides)" if rule["overrides"] else ""),
                ", ".join(rule["effects"]),
                "; ".join(notes),
            )
        console.print(table)
        for correction in policy["corrected"]:
            line = (
                f"{correction['reason']} ({correction['path']}) [{correction['code']}]"
            )
            click.echo(f"differs from Kyverno 1.18: {one_line(line)}")


def called(
    paths: tuple[str, ...], exceptions: tuple[str, ...], output: str, target: str
) -> int:
    """Load, compile and describe policies; raises CommandFailed if one is rejected."""
    try:
        policy_set = load_policies(_files(paths))
    except OSError as error:
        raise CommandFailed(read_error(error, error.filename or "")) from error
    loaded = load_exceptions(exceptions)
    of_rules = [*policy_set.exceptions, *loaded.of_rules]
    compiled = compile_all(
        policy_set.documents, of_rules, policy_set.cleanups, verifies=True
    )
    of_cel = [*policy_set.cel_exceptions, *loaded.of_cel]
    policies = [describe(policy) for policy in compiled.policies]
    policies += [describe_admission(ir) for ir in compile_admission(policy_set)]
    cel = compile_cel(policy_set, of_cel, compiled)
    policies += [describe_validating(ir) for ir in cel]
    authorizing = compile_authorizations(policy_set, of_cel, compiled, ())
    policies += [describe_authorization(ir) for ir in authorizing]
    images = compile_images(policy_set, of_cel, compiled)
    policies += [describe_validating(image) for image in images]
    other_policies = compile_others(policy_set, of_cel, compiled)
    policies += [describe_cel(ir) for ir in other_policies]
    policies += [describe_cleanup(cleanup) for cleanup in compiled.cleanups]
    _add_corrections(policy_set, policies)
    refused = [f"{path}: {reason}" for path, reason in policy_set.failed_paths]
    refused += [f"policy {name}: {error.message}" for name, error in compiled.invalid]
    if target == "server":
        refused += _not_served(policy_set, compiled, policies)
    if output == "json":
        click.echo(json.dumps(policies, indent=2))
    else:
        _print_table(policies)
    if refused:
        raise CommandFailed("\n".join(refused))
    return 0


def _add_corrections(policy_set: PolicySet, policies: list[dict[str, Json]]) -> None:
    """Add to each policy what Kyverno 1.18 answers wrongly in it."""
    documents = (*policy_set.documents, *policy_set.cleanups)
    of_cel = (
        *policy_set.validating,
        *policy_set.authorization,
        *policy_set.images,
        *policy_set.cel,
    )
    by_name: dict[tuple[str, str], list[dict[str, Json]]] = {}
    for document in (*documents, *of_cel):
        namespace, name = document.metadata.namespace, document.metadata.name
        key = f"{namespace}/{name}" if namespace else name
        by_name[document.kind, key] = [
            {
                "code": correction.code,
                "path": correction.path,
                "reason": correction.message,
            }
            for correction in corrections(document)
        ]
    for described in policies:
        described["corrected"] = by_name.get(
            (described["kind"], described["policy"]), []
        )


def _not_served(
    policy_set: PolicySet, compiled: Compiled, policies: list[dict[str, Json]]
) -> Iterator[str]:
    """Yield the server's reasons to reject policies, and mark rules that it skips."""
    for policy, described in zip(compiled.policies, policies, strict=False):
        lacking = {refusal.rule: refusal.message for refusal in left_out(policy)}
        for rule in described["rules"]:
            rule["notServed"] = lacking.get(rule["name"], "")
        for message in dict.fromkeys(lacking.values()):
            yield f"policy {described['policy']}: {message} [{UNSUPPORTED}]"
    for authorizing in policy_set.authorization:
        message = f"the server does not evaluate {unserved(authorizing)}"
        yield f"policy {authorizing.metadata.name}: {message} [{UNSUPPORTED_KIND}]"
    refused = {name for name, _ in compiled.invalid}
    for document in (*policy_set.cleanups, *policy_set.documents):
        name = document.metadata.name
        if name not in policy_set.raw or name in refused:
            continue
        for refusal in refused_by_webhook(policy_set.raw[name]):
            yield f"policy {name}: {refusal.message} [{refusal.code}]"


def _files(paths: Sequence[str]) -> list[str]:
    """Return the paths with folders replaced by their files that contain policies.

    Loading a folder as a whole fails at its first file without policies.
    """
    say_empty(paths)
    files: list[str] = []
    foreign = 0
    for path in paths:
        below = [str(file) for file in files_below(Path(path))] if _is_dir(path) else []
        relevant = [file for file in below if not _is_foreign(file)]
        foreign += len(below) - len(relevant)
        files += relevant if below else [path]
    if foreign:
        say(f"files without policies: {foreign}", err=True)
    return files


def _is_dir(path: str) -> bool:
    return path != "-" and "://" not in path and Path(path).is_dir()


def _is_foreign(file: str) -> bool:
    if is_template(file):
        return True
    try:
        documents = load(read_file(file), file=file)
    except (InputError, OSError):
        return False  # reported when the file is loaded
    return all(
        foreign_kind(document.raw) or is_input_of_another_command(document.raw)
        for document in documents
    )
