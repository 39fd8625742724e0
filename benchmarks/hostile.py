"""What do a thousand hostile connections a second cost nodes that come over TLS with a token? A round with and without them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from crowd import TOKEN
from harness import HOLDFAST, Bench, Launch, Row, clean_environment, command, free_port, launch, worker

COUNT, PER_S, MORE_MS = 64, 1000, 1000
"""Nodes; hostile connections a second, from eight addresses; and how much longer the round may take for those."""


def certificates(folder: Path) -> tuple[str, ...]:
    """A node's command line, with files of a CA of its own."""
    import trustme

    ca = trustme.CA()
    issued = ca.issue_cert("node.example")
    (cert, key, authority) = (folder / name for name in ("node.pem", "node.key", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(authority)
    return "--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(authority)


def formed(job: Launch, tls: tuple[str, ...], *, hostile: bool) -> float:
    """Milliseconds until each of the others, which come at once, has connected, proved itself and got its rank."""
    port = free_port()
    flags = ["--nnodes", str(COUNT), "--nproc-per-node", "1", "--rdzv-id", "bench", "--rdzv-backend", "c10d", "--lease", "30"]
    flags += ["--rdzv-endpoint", f"127.0.0.1:{port}", *tls]
    job.start([*command(HOLDFAST), *flags, worker("stay")], TOKEN)
    attacker = subprocess.Popen([sys.executable, worker("attacker"), str(port), str(PER_S)], stdout=subprocess.PIPE)
    try:
        if hostile:
            assert attacker.stdout is not None and attacker.stdout.readline(), "nobody attacks"
        else:
            attacker.kill()
        argv = [sys.executable, worker("members"), str(port), str(COUNT - 1), *tls[1::2]]
        done = subprocess.run(argv, env=clean_environment() | TOKEN, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"no round: {done.stderr[-2000:]}\n{job.output()}")
        return float(json.loads(done.stdout)["ms"])
    finally:
        attacker.kill()
        attacker.communicate()


def run(bench: Bench) -> list[Row]:
    """One row without them, and one with them."""
    took: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        tls = certificates(Path(folder))
        for _ in range(bench.times(5)):
            for hostile, samples in took.items():
                with launch() as job:
                    samples.append(formed(job, tls, hostile=hostile))
    what = f"{COUNT} nodes come over TLS with a token → the last has its rank"
    more = median(took[True]) - median(took[False])
    return [
        Row(what, "ms", {HOLDFAST: took[False]}),
        Row(
            f"the same, with {PER_S:,} hostile connections a second from eight addresses",
            "ms", {HOLDFAST: took[True]}, f"≤ {MORE_MS / 1000:g} s more", more <= MORE_MS, f"{more:.0f} ms more",
        ),
    ]  # fmt: skip
