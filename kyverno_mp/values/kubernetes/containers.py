"""Count the containers of a Pod or of a pod template.

Room: values. Takes: an object. Gives: a number, as an estimate of the work.
Next: program/context/rule_context, program/bodies/pod_security.
"""

from typing import Final

from kyverno_mp.values.jsonvalue import Json

_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")
_BELOW: Final = ("spec", "jobTemplate", "template")


def count_containers(resource: Json) -> int:
    """Return the number of entries, of any type, in all container lists."""
    count = 0
    holders = [resource]
    while holders:
        holder = holders.pop()
        if type(holder) is not dict:
            continue
        for key in _LISTS:
            listed = holder.get(key)
            if type(listed) is list:
                count += len(listed)
        holders += [holder[key] for key in _BELOW if key in holder]
    return count
