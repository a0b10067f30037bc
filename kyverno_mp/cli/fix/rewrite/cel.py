"""Move the expressions of a ``validate.cel`` rule.

Room: cli. Takes: a rule. Gives: its expressions, variables and preconditions, and the
copies of autogen as one. Next: policy.py.
Source: docs/behaviour/engine 2.2, 6.4; docs/behaviour/cel 6.

Autogen writes a rule on Pods again for each path of a Pod in a controller. A variable
that holds the Pod, or the template of the Pod, makes one expression of the copies.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.texts import NotRewritten
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.fields.validation import CEL, CELValidation, ParamKind, ParamRef

POD: Final = "pod"
OLD_POD: Final = "oldPod"
_PATHS: Final = ("", "spec.template.", "spec.jobTemplate.spec.template.")
_CRON_JOB: Final = "autogen-cronjob-"
_ROOTS: Final = (("object", POD), ("oldObject", OLD_POD))


class Moved(NamedTuple):
    """The CEL parts of a rule; equal if two rules test the same parts of a Pod."""

    expressions: tuple[CELValidation, ...]
    variables: tuple[NamedExpression, ...]
    preconditions: tuple[NamedExpression, ...]

    def texts(self) -> list[str]:
        """Return all expressions."""
        given = [one.expression for one in (*self.variables, *self.preconditions)]
        for validation in self.expressions:
            given += [validation.expression, validation.message_expression]
        return given


def moved(rule: Rule, cel: CEL) -> Moved:
    """Return the CEL parts of a rule. Raises: NotRewritten."""
    for is_given, what in (
        (cel.param_kind not in (None, ParamKind()), "paramKind"),
        (cel.param_ref not in (None, ParamRef()), "paramRef"),
        (bool(cel.audit_annotations), "auditAnnotations"),
        (not cel.expressions, "cel without expressions"),
    ):
        if is_given:
            raise NotRewritten(what)
    found = Moved(cel.expressions, cel.variables, rule.cel_preconditions or ())
    if any("authorizer" in text for text in found.texts()):
        raise NotRewritten("authorizer")
    return found


def path_of_copy(name: str, original: str) -> str:
    """Return the path of the Pod in a copy, with a dot at the end; "" for a Pod."""
    if name == original:
        return _PATHS[0]
    return _PATHS[2] if name.startswith(_CRON_JOB) else _PATHS[1]


def as_one(copies: Sequence[tuple[Moved, str]]) -> Moved | None:
    """Return a rule and its autogen copies with ``variables.pod``; None: they differ.

    ``copies``: with the path of the Pod.
    """
    if any(
        one.name in (POD, OLD_POD) for given, _ in copies for one in given.variables
    ):
        return None
    first, *others = (_with_pod(given, path) for given, path in copies)
    return first if all(one == first for one in others) else None


def pod_variables(texts: Iterable[str], root: str) -> list[dict[str, str]]:
    """Return the variables that hold the Pod, as far as the expressions use them."""
    return [
        {"name": name, "expression": _pod_of(holder)}
        for holder, name in ((root, POD), ("oldObject", OLD_POD))
        if any(f"variables.{name}." in text for text in texts)
    ]


def _pod_of(root: str) -> str:
    of_controller, of_cron_job = (path.removesuffix(".") for path in _PATHS[1:])
    return (
        f"{root}.kind == 'Pod' ? {root}"
        f" : {root}.kind == 'CronJob' ? {root}.{of_cron_job}"
        f" : {root}.{of_controller}"
    )


def _with_pod(given: Moved, prefix: str) -> Moved:
    def text(expression: str) -> str:
        for root, name in _ROOTS:
            for part in ("spec", "metadata"):
                path = f"{root}.{prefix}{part}"
                expression = expression.replace(path, f"variables.{name}.{part}")
        return expression

    def named(given: Iterable[NamedExpression]) -> tuple[NamedExpression, ...]:
        return tuple(
            NamedExpression(name=one.name, expression=text(one.expression))
            for one in given
        )

    return Moved(
        tuple(
            CELValidation(
                expression=text(one.expression),
                # A path in a message is that of the Pod.
                message=one.message.replace(prefix, "") if prefix else one.message,
                message_expression=text(one.message_expression),
            )
            for one in given.expressions
        ),
        named(given.variables),
        named(given.preconditions),
    )
