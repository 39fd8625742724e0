"""What does NVIDIA's driver say of this node's GPUs, if it can answer at all? `nvidia-smi` is asked, in a child that is thrown
away: on broken hardware it hangs, sometimes where even SIGKILL does not reach.
"""

from __future__ import annotations

import os
import select
import signal

TIMEOUT_S = 15.0  # Eight GPUs without the persistence daemon take some seconds to wake.

MOST = 4 << 20  # Bytes of an answer that are read: some 20 kB per GPU come.


UTILIZATION = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


def is_here() -> bool:
    """Whether there is anybody to ask."""
    return any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path())


def any_busy(timeout_s: float = TIMEOUT_S) -> bool | None:
    """Whether any GPU of this node works at this moment. None: nobody can tell."""
    report, _ = query(timeout_s, UTILIZATION)
    shares = [int(line) for line in report.split() if line.isdigit()]
    return any(shares) if shares else None


def query(timeout_s: float = TIMEOUT_S, arguments: tuple[str, ...] = ("-q",)) -> tuple[str, str]:
    """What `nvidia-smi` prints with these arguments, and what went wrong; one of the two is empty."""
    import subprocess  # heavy, and only asked where there is a GPU to be judged

    out = os.memfd_create("nvidia-smi", os.MFD_CLOEXEC)
    try:
        # A session of its own, so that what it starts can be killed with it.
        child = subprocess.Popen(
            ["nvidia-smi", *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True
        )
        if not _ends(child.pid, timeout_s):
            os.killpg(child.pid, signal.SIGKILL)
            if _ends(child.pid, 1.0):
                child.wait()
            return "", f"nvidia-smi did not answer within {timeout_s:g} s"
        code = child.wait()
        if code:
            return "", f"nvidia-smi ended with {code}"
        return os.pread(out, MOST, 0).decode(errors="replace"), ""
    except OSError as error:
        return "", f"nvidia-smi cannot be run: {error.strerror}"
    finally:
        os.close(out)


def _ends(pid: int, within_s: float) -> bool:
    """Whether a child ends in time. Never waits for one that nothing can end."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000.0))
    finally:
        os.close(pidfd)
