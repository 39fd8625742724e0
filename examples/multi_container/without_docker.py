"""The same without Docker: a real etcd and two agents on this machine, as two containers would be.

    make example-etcd          (or: python examples/multi_container/without_docker.py)

Both agents are given the same command line. etcd decides which of them leads; the ranks of both form one process group.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

APP = Path(__file__).with_name("app.py")


def main() -> int:
    """Run it. Returns the exit code."""
    if shutil.which("etcd") is None:
        print("etcd is not installed: apt-get install etcd-server", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        client, peer = free_port(), free_port()
        etcd = start_etcd(folder, client, peer)
        try:
            wait_for(client, etcd)
            agents = [start_agent(name, f"localhost:{client}", folder) for name in ("node1", "node2")]
            return max(abs(agent.wait()) for agent in agents)
        finally:
            etcd.terminate()
            etcd.wait()


def start_etcd(folder: str, client: int, peer: int) -> subprocess.Popen[bytes]:
    """One member on loopback, which forgets everything afterwards."""
    url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    command = ["etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
    command += ["--initial-cluster", f"default={peer_url}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(port: int, etcd: subprocess.Popen[bytes]) -> None:
    """Until etcd answers."""
    while etcd.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except (OSError, urllib.error.URLError):
            try:
                etcd.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    raise SystemExit("etcd ended at once: try it by hand")


def start_agent(name: str, endpoint: str, folder: str) -> subprocess.Popen[bytes]:
    """`holdfast run`, as in docker-compose.yml but for two nodes."""
    flags = ["--nnode=2", "--nproc_per_node=2", f"--rdzv_endpoint={endpoint}", "--node-name", name]
    print(f"$ PET_RDZV_BACKEND=etcd holdfast run {' '.join(flags)} {APP.name}", flush=True)
    env = os.environ | {"PET_RDZV_BACKEND": "etcd", "PET_RDZV_ID": "minimal", "HOLDFAST_STATE_DIR": folder, "LOGLEVEL": "INFO"}
    return subprocess.Popen([sys.executable, "-m", "holdfast", "run", *flags, str(APP)], env=env)


def free_port() -> int:
    """A TCP port that is free on this host now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
