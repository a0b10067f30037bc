"""Compare image references with patterns, in any form of their hosts.

Room: values. Takes: references and wildcard patterns. Gives: ``same_host``,
``is_image_like``. Next: program/images/selection.py,
program/image_policies/references.py, program/pod_security/exclude.py.
Source: docs/differences.md (upstream compares the written text).
"""

from typing import Final

from kyverno_mp.values.kubernetes.image import has_registry
from kyverno_mp.values.wildcard import matches

_HTTPS: Final = "443"


def same_host(reference: str) -> str:
    """Return a reference, or a pattern of references, with its host in one form.

    Hosts are in lower case, and ports are numbers without zeros in front; port 443 is
    omitted. Only for comparisons: a client sends the host as it is written.
    """
    head, slash, rest = reference.partition("/")
    if not slash or not has_registry(reference):
        return reference
    host, _, port = head.rpartition(":")
    if host and port.isascii() and port.isdigit():
        number = port.lstrip("0")
        head = host if number == _HTTPS else f"{host}:{number}"
    return f"{head.lower()}/{rest}"


def is_image_like(pattern: str, image: str) -> bool:
    """Return whether a reference matches a wildcard pattern, in any form of its host.

    The written forms are compared, too: ``ghcr.io:*/app`` matches port 443.
    """
    if matches(pattern, image):
        return True
    host_pattern, host_image = same_host(pattern), same_host(image)
    is_other = host_pattern != pattern or host_image != image
    return is_other and matches(host_pattern, host_image)
