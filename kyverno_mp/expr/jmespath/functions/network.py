"""Implement functions for URLs and image references.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
May touch: nothing outside its arguments; names are resolved by ``resolve_host``.
Source: docs/behaviour/engine 9.2 (is_external_url, image_normalize), 3.8.
"""

from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.effects import EFFECT_CLUSTER
from kyverno_mp.expr.jmespath.functions.entry import (
    BOOL,
    STRING,
    FunctionEntry,
    function_error,
)
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import URL_CHARACTERS_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import parse_image

_STEPS: Final = 40


def _is_external_url(runtime: Runtime, url: str) -> Json:
    _charge(runtime, url)
    # PERF: imported here to keep the start of the CLI short; only this function needs
    # addresses and URLs.
    from kyverno_mp.expr.jmespath.external_url import is_external

    return is_external(runtime, url)


def _charge(runtime: Runtime, url: str) -> None:
    if len(url) > URL_CHARACTERS_MAX:
        raise BudgetExceeded("expr.url", "URL or image is too long")
    runtime.charge(_STEPS + len(url))
    runtime.charge_bytes(len(url))


def _image_normalize(runtime: Runtime, image: str) -> Json:
    _charge(runtime, image)
    try:
        settings = runtime.images()
        return parse_image(
            image,
            default_registry=settings.default_registry,
            default_registry_mutation=settings.default_registry_mutation,
        ).reference
    except ExpressionFailed as error:
        raise function_error("image_normalize", error.message) from error


FUNCTIONS: Final = (
    FunctionEntry(
        "image_normalize",
        (STRING,),
        _image_normalize,
        STRING,
        "normalizes an image reference",
    ),
    FunctionEntry(
        "is_external_url",
        (STRING,),
        _is_external_url,
        BOOL,
        "determine if a URL points to an external network address",
        effects=EFFECT_CLUSTER,
    ),
)
