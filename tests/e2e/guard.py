"""Become a program that dies with the one who started it.

Used as ``python guard.py PARENT_PID PROGRAM ARGUMENTS...``: asks the kernel to kill the
process when its parent ends, however it ends, then becomes the program. So a test run
that is killed leaves no control plane behind.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has gone")
    os.execv(sys.argv[2], sys.argv[2:])
