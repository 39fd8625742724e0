"""`holdfast daemon`: this host's daemon, and `holdfast daemon --status` what it knows."""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.cli.arguments import reads
from holdfast.cli.fleet.supervisor_here import answer_at, tls_arguments, token_of
from holdfast.cli.table import show, show_json
from holdfast.core.config import grammar
from holdfast.core.config.own_options import SUPERVISOR_PORT
from holdfast.core.errors import UsageError
from holdfast.runtime.net.addresses import is_loopback
from holdfast.runtime.secrets import shelter_of
from holdfast.supervisor.daemon.daemon import Daemon
from holdfast.supervisor.daemon.host_table import SILENCE_S
from holdfast.supervisor.daemon.host_uplink import Supervisor
from holdfast.telemetry.record.state_dir import daemon_socket, state_home
from holdfast.telemetry.report.safe_text import one_line

HELP = "know every rank of this host: serves Google's resiliency clients and our agents"

PORT_VARIABLE = "GCP_HOST_DAEMON_PORT"
PORT = 60010
"""Of Google's recipes."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--port", type=reads(grammar.port_number), metavar="N", help=f"default: ${PORT_VARIABLE}, else {PORT}; 0: any"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDR", help="of the loopback interface (default: %(default)s)")
    whose = "also hear ranks of this user of the host, beside our own and root's; any: of everybody; may be repeated"
    parser.add_argument("--allow-user", action="append", default=[], metavar="UID", help=whose)
    silent = "a rank not heard of for S seconds is silent (default: 30)"
    parser.add_argument("--silence", type=reads(grammar.some_seconds), metavar="S", help=silent)
    parser.add_argument("--state-dir", metavar="DIR", help="where its table is kept (default: where jobs are)")
    parser.add_argument("--supervisor", metavar="HOST:PORT[,…]", help="tell it of ranks that agents of ours have not started")
    parser.add_argument("--supervisor-token-file", metavar="FILE", help="the secret that it knows ($HOLDFAST_SUPERVISOR_TOKEN)")
    parser.add_argument("--node-name", metavar="NAME", help="name of this host (default: the host's name)")
    tls_arguments(parser, "supervisors")
    parser.add_argument("--status", action="store_true", help="show what the daemon that runs here knows")
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.add_argument("--uncordon", action="store_true", help="take back what Google's actuator has cordoned")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; or show."""
    home = os.path.abspath(options.state_dir) if options.state_dir else state_home(os.environ)
    if options.status or options.json:
        return _show(_asked(home, "table"), as_json=options.json)
    if options.uncordon:
        _asked(home, "uncordon")
        return 0
    if not is_loopback(options.host):
        raise UsageError(
            f"--host: {options.host} is not a loopback address, and Google's protocol has no authentication",
            hint="each host has a daemon of its own, which its ranks reach at 127.0.0.1",
        )
    silence_s = SILENCE_S if options.silence is None else options.silence
    daemon = Daemon(home, options.host, _port(options.port), silence_s, _supervisor(options), _users(options.allow_user))
    try:
        print(f"listening at {daemon.listens}; table in {home}", flush=True)
        return daemon.run()
    finally:
        daemon.close()


def _users(given: list[str]) -> frozenset[int] | None:
    if "any" in given:
        return None
    if wrong := [one for one in given if not one.isdecimal()]:
        raise UsageError(f"--allow-user: {wrong[0]!r} is neither a uid nor any", hint="`id -u NAME` tells a user's")
    return frozenset(map(int, given))


def _supervisor(options: argparse.Namespace) -> Supervisor | None:
    if not options.supervisor:
        alone = {"--supervisor-token-file": options.supervisor_token_file, "--tls-cert": options.tls_cert}
        alone |= {"--tls-key": options.tls_key, "--tls-ca": options.tls_ca}
        if given := [flag for flag, value in alone.items() if value]:
            raise UsageError(f"{', '.join(given)}: only with --supervisor", hint="name the supervisor, or leave them out")
        return None
    endpoints = grammar.endpoints(options.supervisor, "--supervisor", default_port=SUPERVISOR_PORT)
    secret = token_of(options.supervisor_token_file, "--supervisor-token-file")
    shelter = shelter_of(options.tls_cert, options.tls_key, options.tls_ca)
    name = options.node_name or os.uname().nodename
    return Supervisor(endpoints=endpoints, node_name=name, secret=secret, shelter=shelter)


def _port(given: int | None) -> int:
    if given is not None:
        return given
    return grammar.port_number(os.environ.get(PORT_VARIABLE) or str(PORT), PORT_VARIABLE)


def _asked(home: str, what: str) -> dict[str, Any]:
    return answer_at(daemon_socket(home), "daemon", "`holdfast daemon` starts one", {"ask": what})


def _show(answer: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        show_json(answer)
        return 0
    daemon, table = answer["daemon"], answer["table"]
    print(f"daemon    pid {daemon['pid']}, listens at {daemon['listens']}")
    print(f"host      {table['state']}{', cordoned' if table['cordoned'] else ''}")
    for agent in table["agents"]:
        print("agent    ", one_line(f"{agent['node']} of {agent['job']}, pid {agent['pid']}", 500))
    rows = [_row(workload["workload_name"], worker) for workload in table["workloads"] for worker in workload["workers"]]
    if rows:
        print()
        show(("workload", "rank", "local", "state", "heard", "device", "address"), rows)
    return 0


def _row(workload: str, worker: dict[str, Any]) -> tuple[object, ...]:
    heard = f"{worker['heard_s']:.1f} s ago{', silent' if worker['silent'] else ''}"
    texts = (one_line(worker[name], 100) for name in ("device", "address"))
    return one_line(workload, 100) or "-", worker["rank"], worker["local_rank"], worker["state"], heard, *texts
