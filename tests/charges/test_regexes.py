"""No regular expression blocks all threads for long while RE2 compiles it.

RE2 compiles in one call. A failure means: a user who can write a policy, or an object
that a policy reads expressions from, blocks a worker for seconds.
"""

import time
from random import Random

import pytest

from kyverno_mp.errors import Preempted
from kyverno_mp.expr.cel.functions.regexes import matches
from kyverno_mp.expr.cel.values import CelFailed, Meter
from kyverno_mp.expr.jmespath.functions.regexes import compile_regex
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import (
    REGEX_CLASSES_MAX,
    REGEX_OPTIONAL_MAX,
    REGEX_PROGRAM_BYTES_MAX,
    REGEX_REPEATS_MAX,
)
from kyverno_mp.values.go import regex
from kyverno_mp.webhook.review.pace import EventLoopPace
from tests.charges.cel import gauge
from tests.charges.charges import runtime

_WHOLE = 8_000
"""The number of characters in a long pattern."""


def _row(part: str, most: int = _WHOLE) -> str:
    return part * min(most, _WHOLE // len(part))


_LONG = {
    "optional copies": _row("a{500,1000}"),
    "optional copies, few": "a{500,1000}" * 128,
    "optional copies of letters": _row("a{0,9}"),
    "optional letters": _row("a?"),
    "optional groups": _row("(?:a?){0,1000}"),
    "optional letters, in a repeated group": f"(?:{_row('a?', 1990)}){{20}}",
    "optional letters, in groups in groups": f"(?:(?:{_row('a?', 650)}){{9}}){{10}}",
    "optional brackets": "(?:" + r"\(?" * 2700 + "){20}",
    "optional brackets, few": "(?:" + r"\(?" * 80 + "){20}",
    "optional brackets in classes": "(?:" + "[(?]?" * 1500 + "){20}",
    "any number of letters": f"(?:{_row('a*b*', 900)}){{30}}",
    "ranges": "[Ā-\uffff]{999}" * 20,
    "ranges, few": "[Ā-\uffff]{999}" * 10,
    "Unicode classes": _row(r"\pL"),
    "all that are none": _row(r"(?i)\PL"),
    "classes in brackets": _row(r"(?i)[\pL\PL]"),
    "repeated classes": r"(?i)[\pL\pN]{400}",
    "copies": _row("é{1000}"),
    "at least": _row(r"\w{1000,}"),
    "as many as allowed, optional": _row("a{0,100}", REGEX_OPTIONAL_MAX // 100),
    "as many as allowed, classes": r"(?i)" + r"\PL" * REGEX_CLASSES_MAX,
    "as many as allowed, copies": _row("[^é]{1000}", REGEX_REPEATS_MAX // 1000),
}


@pytest.mark.parametrize("name", _LONG)
def test_long_compilations_are_rejected_or_charged(name: str) -> None:
    pattern = _LONG[name]

    def in_cel(budget: gauge.RuleBudget) -> None:
        regex._memo = regex._Memo()  # type: ignore[misc] # a worker that is new
        meter = Meter(10_000_000, budget)
        try:
            matches(meter, "a", pattern)
        finally:
            budget.steps_left -= meter.settle()

    def in_jmespath(budget: gauge.RuleBudget) -> None:
        regex._memo = regex._Memo()  # type: ignore[misc] # a worker that is new
        given: Runtime = runtime()
        before = given.steps_left
        try:
            compile_regex(given, pattern)
        finally:
            budget.charge(before - given.steps_left)

    assert not gauge.problem(in_cel)
    assert not gauge.problem(in_jmespath)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\pL" * (REGEX_CLASSES_MAX + 1),
        "a?" * (REGEX_OPTIONAL_MAX + 1),
        f"a{{0,1000}}a{{0,{REGEX_OPTIONAL_MAX - 1000}}}b?",
        "a{1000}" * (REGEX_REPEATS_MAX // 1000) + "b{2}",
        f"(?:{'a?' * 21}){{{REGEX_OPTIONAL_MAX // 20}}}",
        f"(?:(?P<n>(?i:{'a*' * 21})){{10}}x){{{REGEX_OPTIONAL_MAX // 200}}}",
        "(?:" + r"\(?" * 21 + f"){{{REGEX_OPTIONAL_MAX // 20}}}",
        "(?:" + r"\Q(?\E?" * 21 + f"){{{REGEX_OPTIONAL_MAX // 20}}}",
        "(?:" + "[](?]?" * 21 + f"){{{REGEX_OPTIONAL_MAX // 20}}}",
        "[Ā-\uffff]{1000}" * (REGEX_REPEATS_MAX // 1000),
    ],
)
def test_error_says_that_regex_is_too_large(pattern: str) -> None:
    with pytest.raises(CelFailed, match="expression too large"):
        matches(Meter(), "a", pattern)


_ATOMS = ("a", r"\(", r"\?", "[(?]", "[]()?]", r"[^\]{]", r"\Q(?){2}\E", "[[:alpha:]?]")


def _drawn(random: Random, depth: int) -> tuple[str, int]:
    """Return a part of a pattern, and the number of its optional parts with copies."""
    if not depth:
        return random.choice(_ATOMS), 0
    drawn = [_drawn(random, depth - 1) for _ in range(random.randint(1, 3))]
    inner = "".join(text for text, _ in drawn)
    count = sum(one for _, one in drawn)
    text = random.choice(("(", "(?:", "(?i:", "(?P<n>", "(?-s:")).replace(
        "<n>", f"<n{random.getrandbits(60)}>"
    )
    text += f"{inner})"
    copies = random.randint(1, 7)
    return random.choice(
        (
            (text, count),
            (text + "?", count + 1),
            (text + "*?", count + 1),
            (text + "+", count),
            (f"{text}{{{copies}}}", copies * count),
            (f"{text}{{{copies},{copies + 2}}}", (copies + 2) * count + 2),
            (f"{text}{{{copies},}}?", copies * count + 1),
        )
    )


@pytest.mark.parametrize("seed", range(40))
def test_optional_parts_count_with_all_copies(seed: int) -> None:
    """The limit is on this number times the copies of an enclosing group."""
    random = Random(seed)
    text, count = _drawn(random, 4)
    most = REGEX_OPTIONAL_MAX // max(count, 1)
    if count > REGEX_OPTIONAL_MAX:
        assert regex.work_ahead(f"(?:{text}){{1}}") == 0
        return
    allowed, refused = f"(?:{text}){{{most}}}", f"(?:{text}){{{most + 1}}}"
    assert regex.work_ahead(allowed) >= most
    assert regex.work_ahead(refused) == 0 or count == 0


def test_common_expressions_compile() -> None:
    for pattern in (
        r"^(\d{1,3}\.){3}\d{1,3}(/\d{1,2})?$",
        r"^(?:[à-öø-ÿ0-9](?:[à-öø-ÿ0-9-]{0,61}[à-öø-ÿ0-9])?\.){1,5}de$",
        r"^(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/){0,10}[a-z0-9]{1,63}(?::[\w.-]{1,128})?$",
        r"^[\p{L}\p{N}][\p{L}\p{N} _-]{0,62}$",
        "|".join(f"name-{number}" for number in range(700)),
    ):
        matches(Meter(), "a", pattern)
        assert 16 * regex.compile_regex(pattern, captures=False).instructions < (
            REGEX_PROGRAM_BYTES_MAX
        )


def test_event_loop_leaves_long_compilations_to_a_thread() -> None:
    """A failure means: expressions of an object delay all other reviews."""
    given: Runtime = runtime(pace=EventLoopPace(time.monotonic_ns() + 10**7))
    with pytest.raises(Preempted):
        compile_regex(given, "a{0,1000}a{0,999}")
