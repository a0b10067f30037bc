"""Become a program that dies with the one who started it.

Used as ``python guard.py PARENT_PID PROGRAM ARGUMENTS...``: asks the kernel to kill the
process when its parent ends, however it ends, then becomes the program. So a test run
that is killed leaves no control plane behind. TIMER_SLACK_NS in the environment lets
the kernel ring its timers that much later, so that one wake-up serves several.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29

if __name__ == "__main__":
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if slack_ns := os.environ.get("TIMER_SLACK_NS"):
        prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(int(slack_ns)))
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has gone")
    os.execv(sys.argv[2], sys.argv[2:])
