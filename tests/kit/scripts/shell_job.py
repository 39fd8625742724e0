"""A shell with job control, for one foreground job on the terminal that is its standard input.

    shell_job.py FILE SCRIPT ARGS...        FILE gets the job's pid
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import termios
import time

os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    while os.tcgetpgrp(0) != os.getpid():
        time.sleep(0.001)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
with contextlib.suppress(PermissionError):  # it was quicker
    os.setpgid(job, job)
os.tcsetpgrp(0, job)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(job))
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.waitpid(job, 0)
