"""Fetch one file by HTTP or HTTPS from a URL that the user names.

Room: cli. Takes: a URL. Gives: bytes. Next: resources.
May touch: the network (with the proxies of the environment), the clock.
Source: docs/behaviour/cli 5 (an HTTP URL as a path that is not the first).
"""

import errno
import http.client
import time
import urllib.error
import urllib.request
from typing import Final

from kyverno_mp.limits import POLICY_FILE_BYTES_MAX

_FETCH_S_MAX: Final = 60.0
_READ_BYTES: Final = 65536


def fetch(url: str, *, bytes_max: int = POLICY_FILE_BYTES_MAX) -> bytes:
    """Return the body of a GET; redirects are followed.

    Raises: OSError, whose strerror gives the reason.
    """
    until = time.monotonic() + _FETCH_S_MAX
    parts: list[bytes] = []
    size = 0
    try:
        with urllib.request.urlopen(  # noqa: S310 - the caller has checked the scheme
            url, timeout=_FETCH_S_MAX
        ) as answer:
            while part := answer.read1(_READ_BYTES):
                size += len(part)
                if size > bytes_max:
                    raise _failed(f"larger than {bytes_max} bytes")
                if time.monotonic() > until:
                    raise _failed(f"not done in {_FETCH_S_MAX:.0f} s")
                parts.append(part)
    except urllib.error.HTTPError as error:
        with error:
            raise _failed(f"failed to process {url}: HTTP {error.code}") from error
    except urllib.error.URLError as error:
        raise _failed(str(error.reason)) from error
    except (http.client.HTTPException, ValueError) as error:
        raise _failed(f"no answer in HTTP ({type(error).__name__})") from error
    return b"".join(parts)


def _failed(reason: str) -> OSError:
    return OSError(errno.EIO, reason)
