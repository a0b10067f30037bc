"""``python -m tests.e2e``: start a control plane with our definitions and keep it.

``--serve`` starts kyverno-mp there, too. Prints the path of the administrator's
kubeconfig; on Ctrl-C or SIGTERM it stops everything that it started.
"""

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from tests.e2e.prepared import running_plane
from tests.e2e.product import Product


def main() -> int:
    """Run until a signal arrives."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        tempfile.TemporaryDirectory(prefix="kyverno-mp-e2e-") as folder,
        running_plane(Path(folder), has_definitions=True) as plane,
        contextlib.ExitStack() as stack,
    ):
        if "--serve" in sys.argv[1:]:
            product = Product(plane, Path(folder))
            stack.callback(product.stop)
            product.start()
        print(plane.kubeconfig, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
