"""Make objects from the values of a policy: passing, failing, odd.

Room: cli. Takes: Spots. Gives: objects. Next: inputs.py.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Final, NamedTuple

from kyverno_mp.cli.fix.rewrite.at_paths import (
    ABSENT,
    copied,
    list_at,
    set_at,
    with_value,
)
from kyverno_mp.values.jsonvalue import Json

_ODD: Final[tuple[Json, ...]] = (
    *(None, "", "x", "0", "5", "-1", "true", 0, 1, -1, 7, 1.5, 5.0, 10.0, True, False),
    *([], {}, ["x"], [{}], {"x": "y"}, [None], "x y/z:1"),
    *(
        "*",
        "?*",
        "1h",
        "-1.5s",
        "-0s",
        "10Mi",
        "1e3",
        "1-3",
        " x ",
        '["x"]',
        "!x",
        ">1",
        "x|y",
    ),
    *("007", "1.0.0", "a\nb", 2**53 + 1, 1e21, ["*"], [1, "x"], [[]]),
)
_TOGETHER: Final = 200
"""Number of objects that are changed in several places, for each rule."""
_PLACES_MAX: Final = 4
Path = tuple[str | int, ...]


class Spot(NamedTuple):
    """A path in objects, and the policy's values for it."""

    path: Path
    values: tuple[Json, ...]


def objects_of(
    spots: Sequence[Spot],
    randomly: random.Random,
    is_typed: Callable[[Json], bool],
    *,
    mutates: bool,
) -> Iterator[Json]:
    """Yield objects: empty, passing, changed in one place, changed in several."""
    yield {}
    base: Json = {}
    # A parent that is set later would remove what was set below it.
    for spot in sorted(spots, key=lambda one: len(one.path)):
        for value in (_usual(spot), *spot.values, *_ODD):
            changed = with_value(base, spot.path, value)
            if is_typed(changed):
                base = changed
                break
    yield copied(base)
    # The policy's own values come first, because the limit omits the last objects.
    own = [(spot, value) for spot in spots for value in (ABSENT, *spot.values)]
    odd = [(spot, value) for spot in spots for value in _ODD]
    yield from _apart(base, own)
    if mutates:
        yield from _unchanged_yet(base, spots, own)
    yield from _together(base, spots, randomly)
    yield from _apart(base, odd)


def _apart(base: Json, changes: Sequence[tuple[Spot, Json]]) -> Iterator[Json]:
    """Yield objects that are changed in one place."""
    for spot, value in changes:
        changed = with_value(base, spot.path, value)
        yield changed
        yield with_value({}, spot.path, value)
        yield from _beside(base, changed, spot.path)


def _together(
    base: Json, spots: Sequence[Spot], randomly: random.Random
) -> Iterator[Json]:
    """Yield objects that are changed in several places."""
    for _ in range(_TOGETHER if spots else 0):
        changed = copied(base)
        count = randomly.randint(1, min(_PLACES_MAX, len(spots)))
        # A parent that is set later would remove what was set below it.
        for spot in sorted(
            randomly.sample(spots, count), key=lambda one: len(one.path)
        ):
            values = (*spot.values, ABSENT, randomly.choice(_ODD))
            set_at(changed, spot.path, randomly.choice(values))
        yield changed


def _unchanged_yet(
    base: Json, spots: Sequence[Spot], own: Sequence[tuple[Spot, Json]]
) -> Iterator[Json]:
    """Yield objects with two elements in a list that lack a part of another place.

    A patch would change nothing in an object that has all its values already.
    """
    for spot, value in own:
        made = _beside(base, with_value(base, spot.path, value), spot.path)
        for longer in made:
            for other in spots:
                if spot.path[: len(other.path)] != other.path:
                    yield with_value(longer, other.path, ABSENT)


def _usual(spot: Spot) -> Json:
    """Return a value that may satisfy a pattern."""
    texts = [value for value in spot.values if type(value) is str]
    plain = [one for one in texts if not set("*?<>!|&=") & set(one) and one]
    return deepcopy(plain[0] if plain else spot.values[0])


def _beside(base: Json, changed: Json, path: Path) -> Iterator[Json]:
    """Yield the object with an unchanged element before or after the first one."""
    if 0 not in path or path[-1] == 0:
        return
    for place in (0, 1):
        made = copied(changed)
        holder, usual = (list_at(one, path[: path.index(0)]) for one in (made, base))
        if holder and usual:
            holder.insert(place, deepcopy(usual[0]))
            yield made
