"""Import what the service needs, once, before services are forked.

Takes: nothing. Gives: loaded modules. Next: started.py. May touch: nothing.
"""

import importlib

from kyverno_mp.process.startup.preload import LATE
from kyverno_mp.values.typed.schema import built_in

for name in ("kyverno_mp.cli.main", "kyverno_mp.cli.serve", "kyverno_mp.process.serve"):
    importlib.import_module(name)
for name in LATE:
    importlib.import_module(name)
built_in()
