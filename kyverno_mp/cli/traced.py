"""Run a command of the command line as a trace.

Room: cli. Takes: the name of a command, the environment. Gives: its exit code.
Next: telemetry/traces.py. May touch: one thread, which sends the trace.
Source: W3C Trace Context; the variable TRACEPARENT, in which pipelines pass a trace on.
"""

from collections.abc import Callable, Mapping

from kyverno_mp.cli.shell.exit_codes import OK
from kyverno_mp.limits import OTLP_FLUSH_S_MAX
from kyverno_mp.settings.read import read
from kyverno_mp.telemetry.tracing import start_command

_PARENT = "TRACEPARENT"


def traced(name: str, env: Mapping[str, str], run: Callable[[], int]) -> int:
    """Run a command; calls of this thread are steps. Raises: SettingInvalid."""
    tracer = start_command(read(env))
    parent = env.get(_PARENT, "").encode("utf-8", "replace")
    trace = None if tracer is None else tracer.begin(name, parent)
    if tracer is None or trace is None:
        return run()
    with trace:
        code = run()
        trace.attributes["kyverno.command"] = name
        trace.attributes["process.exit.code"] = code
        if code != OK:
            trace.error = str(code)
    tracer.stop(OTLP_FLUSH_S_MAX)
    return code
