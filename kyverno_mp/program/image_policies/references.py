"""Find the images of an object, and those that a policy selects.

Room: program. Takes: the IR of extractors and references, a scope. Gives: References,
``extracted``. Next: evaluate.py.
Source: docs/behaviour/cel 10.4 (extractors by resource); Kyverno
pkg/cel/compiler/images.go, pkg/cel/matching/image.go.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.functions.kyverno import images
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.linking.program import (
    Budget,
    Program,
    compile_expression,
    link_expression,
)
from kyverno_mp.expr.cel.values import Value, type_name
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.image_policies import ImageReferenceIR
from kyverno_mp.program.bodies.cel import COST_MAX
from kyverno_mp.program.context.cel_scope import Dialect, LinkedExpression, link
from kyverno_mp.program.request import Request
from kyverno_mp.values.glob import Glob
from kyverno_mp.values.kubernetes.image_hosts import same_host

_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_POD, _TEMPLATE, _JOB = "", ".spec.template", ".spec.jobTemplate.spec.template"
_PLACES: Final = {
    ("", "v1", "pods"): _POD,
    ("batch", "v1", "jobs"): _TEMPLATE,
    ("apps", "v1", "deployments"): _TEMPLATE,
    ("apps", "v1", "statefulsets"): _TEMPLATE,
    ("apps", "v1", "daemonsets"): _TEMPLATE,
    ("apps", "v1", "replicasets"): _TEMPLATE,
    ("batch", "v1", "cronjobs"): _JOB,
}


@cache
def _library() -> Library:
    return base_library().extended(images.OVERLOADS)


class _Globs:
    """A glob that matches a reference in any form of its host."""

    __slots__ = ("_forms",)

    def __init__(self, glob: str) -> None:
        self._forms = [Glob(form) for form in dict.fromkeys((glob, same_host(glob)))]

    def matches(self, image: str) -> bool:
        names = dict.fromkeys((image, same_host(image)))
        return any(form.matches(each) for form in self._forms for each in names)


class References:
    """The linked ``matchImageReferences`` of a policy."""

    def __init__(
        self, references: Sequence[ImageReferenceIR], *, by_tag: bool = False
    ) -> None:
        """``by_tag``: an image with a tag and a digest is selected by its tag, too.

        SAFETY: otherwise, replacing a tag by its digest would remove the image from a
        policy for ``registry/image:tag``, and nothing would verify it.
        """
        self._by_tag = by_tag
        self._tests: list[_Globs | Program] = [
            _Globs(reference.glob)
            if reference.expression is None
            else link_expression(reference.expression, ("ref",), library=_library())
            for reference in references
        ]

    def select(self, image: str, runtime: Runtime) -> bool:
        """Return whether the policy selects an image; without references, any image.

        Raises: ExpressionFailed, BudgetExceeded.
        """
        if not self._tests or self._is_selected(image, runtime):
            return True
        tagged, _, digest = image.partition("@")
        if not digest or not self._by_tag or ":" not in tagged.rpartition("/")[2]:
            return False
        return self._is_selected(tagged, runtime)

    def _is_selected(self, image: str, runtime: Runtime) -> bool:
        for test in self._tests:
            if isinstance(test, _Globs):
                runtime.charge(1 + len(image) // 100)
                if test.matches(image):
                    return True
            elif Budget(COST_MAX).run(test, (image,), runtime) is True:
                return True
        return False


@cache
def _built_in(path: str, dialect: Dialect) -> Mapping[str, LinkedExpression]:
    """Return the Pod extractors for a path; "" is the Pod itself."""
    environment = Environment(
        {"object": types.DYN, "oldObject": types.DYN}, library=dialect.library()
    )
    linked = {}
    for name in _CONTAINERS:
        source = (
            f"(object != null ? object : oldObject){path}.spec.?{name}.orValue([])"
            ".map(e, e.image)"
        )
        linked[name] = link(compile_expression(source, environment)[0], dialect)
    return linked


def extractors_for(
    request: Request,
    policy_extractors: Mapping[str, LinkedExpression],
    dialect: Dialect,
) -> Mapping[str, LinkedExpression]:
    """Return the kind's extractors; the policy's own extractors take precedence."""
    review = request.review_request or {}
    resource = review.get("requestResource") or review.get("resource") or {}
    key = tuple(resource.get(name, "") for name in ("group", "version", "resource"))
    path = _PLACES.get(key)
    return (
        policy_extractors
        if path is None
        else {**_built_in(path, dialect), **policy_extractors}
    )


def extracted(
    extractors: Mapping[str, LinkedExpression],
    evaluate: Callable[[LinkedExpression], Value],
) -> dict[str, list[str]]:
    """Return the images, grouped by the name of their extractor.

    Raises: ExpressionFailed, BudgetExceeded.
    """
    by_extractor: dict[str, list[str]] = {}
    for name, linked in extractors.items():
        value = evaluate(linked)
        if value.__class__ is not list:
            message = f"type conversion error from '{type_name(value)}' to '[]string'"
            raise ExpressionFailed("cel.images", message)
        for image in value:
            if image.__class__ is not str:
                # SAFETY: an image that is not a string is an error, never "no image".
                message = f"type conversion error from '{type_name(image)}' to 'string'"
                raise ExpressionFailed("cel.images", message)
        by_extractor[name] = value
    return by_extractor
