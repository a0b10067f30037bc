"""``python -m tests.e2e``: start a control plane with our definitions and keep it.

``--serve`` starts kyverno-mp there, too. Prints the path of the administrator's
kubeconfig; on Ctrl-C or SIGTERM it stops everything that it started.
"""

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from tests.e2e.api import Api
from tests.e2e.binaries import find_binaries
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.product import Product


def main() -> int:
    """Run until a signal arrives."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="kyverno-mp-e2e-") as folder:
        plane = ControlPlane(find_binaries(), Path(folder))
        plane.start()
        product = Product(plane, Path(folder)) if "--serve" in sys.argv[1:] else None
        try:
            with Api(plane.access) as api:
                install_crds(api)
            if product is not None:
                product.start()
            print(plane.kubeconfig, flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        finally:
            if product is not None:
                product.stop()
            plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
