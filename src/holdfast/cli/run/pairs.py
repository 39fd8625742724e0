"""How is the pair test started? As a small job of its own, with one rank on each node that takes part: each node's
`holdfast check --pairs`, or its `holdfast run --check-before pairs`, runs one agent of it, and gets all verdicts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from holdfast.core.config.config import RunConfig
from holdfast.core.value import replace, to_plain
from holdfast.health.checks.pairs import VERDICT
from holdfast.health.verdict import Verdict, degraded
from holdfast.runtime.process.process import die_with_parent

NAME = "pairs"
PAIR_S = 60.0  # For one pair. torch's import and NCCL's set-up take some ten seconds of that on a cold node.
ROUNDS_S = 4  # So many times the limit of one pair is the limit of the whole, after the nodes have met.


def verdicts(
    flags: Sequence[str], node: str, environ: Mapping[str, str], *, pair_s: float = PAIR_S, meet_s: float = 600.0
) -> dict[str, Verdict]:
    """Take part as `node`, with these flags of `holdfast run` that say who meets where, and return what was found of each node.
    Where the test could not be made, of this one: degraded, and why."""
    with tempfile.TemporaryDirectory(prefix="holdfast-pairs-") as folder:
        out = os.path.join(folder, "verdicts.json")
        told = {"HOLDFAST_PAIRS_OUT": out, "HOLDFAST_PAIRS_NAME": node, "HOLDFAST_PAIRS_DEADLINE": f"{pair_s:g}"}
        command = (sys.executable, "-P", "-m", "holdfast", "run", "--nproc-per-node", "1", *flags)
        program = ("--monitor", "off", "--quiet", "-m", "holdfast.integrations.torch_pairs")
        limit_s = meet_s + ROUNDS_S * pair_s
        try:
            done = subprocess.run(
                [*command, *program],
                env={**environ, **told},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                preexec_fn=die_with_parent,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {node: _not_made(f"it took more than {limit_s:g} s")}
        try:
            with open(out) as file:
                found = json.load(file)["nodes"]
        except (OSError, ValueError, KeyError):
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return {node: _not_made(f"its job ended with {done.returncode}: {lines[0] if lines else 'it said nothing'}")}
    return {name: replace(Verdict(**fields), check=NAME) for name, fields in found.items()}


def before(config: RunConfig) -> None:
    """Before a job begins, where its nodes are to meet: leave this node's verdict to the check `pairs`."""
    if config.max_nodes < 2:
        return
    name = config.node_name or socket.gethostname()
    is_static = config.rdzv_backend == "static"
    given = {
        "--nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "--rdzv-backend": config.rdzv_backend,
        "--rdzv-endpoint": "" if is_static else config.rdzv_endpoint,
        "--rdzv-id": f"{config.rdzv_id}-pairs",
        "--node-rank": str(config.node_rank) if is_static else "",
        "--master-addr": config.rdzv_host if is_static else "",
        "--master-port": str(config.rdzv_port) if is_static else "",
        "--node-name": name,
        "--local-addr": config.local_addr,
        "--token-file": config.token_file,
        "--tls-cert": config.tls_cert,
        "--tls-key": config.tls_key,
        "--tls-ca": config.tls_ca,
        "--state-dir": config.state_dir,
    }
    flags = tuple(word for flag, value in given.items() if value for word in (flag, value))
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "HOLDFAST_CHECK"))}
    # Not as an argument: it may have the password of etcd.
    own["PET_RDZV_CONF"] = ",".join(f"{key}={value}" for key, value in config.rdzv_conf.items())
    found = verdicts(flags, name, own, meet_s=config.join_timeout_s)
    verdict = found.get(name) or _not_made(f"nobody named {name} took part")
    os.environ[VERDICT] = json.dumps(to_plain(verdict))


def _not_made(why: str) -> Verdict:
    return replace(degraded(f"not known: the pair test could not be made: {why}"), check=NAME)
