"""`holdfast daemon`: this host's daemon, and `holdfast daemon --status` what it knows."""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.cli.arguments import reads
from holdfast.cli.fleet.supervisor_here import answer_at, tls_arguments, token_of, words_of
from holdfast.cli.table import show, show_json
from holdfast.core.config import grammar
from holdfast.core.config.grammar import did_you_mean
from holdfast.core.config.own_options import SUPERVISOR_PORT
from holdfast.core.errors import UsageError
from holdfast.core.wire.google_sensor import ACTUATOR, CONTROLLER, SENSOR
from holdfast.health.check import OF_THE_LOG, ROOT, USUAL, wanted
from holdfast.runtime.net.addresses import is_any_address, is_loopback
from holdfast.runtime.secrets import shelter_of
from holdfast.supervisor.daemon.daemon import Daemon
from holdfast.supervisor.daemon.host_repairs import COMMANDS, HostRepairs
from holdfast.supervisor.daemon.host_table import SILENCE_S
from holdfast.supervisor.daemon.host_uplink import Supervisor
from holdfast.supervisor.daemon.host_watch import EVERY_S, HostWatch
from holdfast.supervisor.daemon.sensor_reports import EVERY_S as BEAT_S
from holdfast.supervisor.daemon.sensor_reports import GoogleServices
from holdfast.telemetry.record.state_dir import daemon_socket, state_home
from holdfast.telemetry.report.safe_text import one_line

HELP = "know every rank of this host: serves Google's resiliency clients and our agents"

PORT_VARIABLE = "GCP_HOST_DAEMON_PORT"
EVERY_VARIABLE = "HEARTBEAT_POLLING_PERIOD_S"
"""As Google's recipes give it to their daemon."""

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
    parser.add_argument("--sensor", metavar="HOST:PORT", help="report to Google's sensor instead, as Google's daemon does")
    parser.add_argument("--controller", metavar="HOST:PORT", help="Google's controller, which is to know this host")
    parser.add_argument("--actuator", metavar="HOST:PORT", help="Google's actuator, which is to know this host")
    every = f"seconds between two heartbeats to the sensor (default: ${EVERY_VARIABLE}, else {BEAT_S:g})"
    parser.add_argument("--sensor-every", type=reads(grammar.some_seconds), metavar="S", help=every)
    commands = "where other hosts reach this one: takes the actuator's commands there, from anybody (default: at --port only)"
    parser.add_argument("--commands-at", metavar="ADDR:PORT", help=commands)
    tls_arguments(parser, "supervisors")
    found = "look for this on the host, such as xid, and tell the supervisor what is found; may be repeated"
    parser.add_argument("--check", action="append", default=[], metavar="CHECK", help=found)
    looks = "seconds between two such looks (default: %(default)g)"
    parser.add_argument("--check-every", type=reads(grammar.some_seconds), default=EVERY_S, metavar="S", help=looks)
    may = f"let the supervisor repair this host by a command: ACT is {', '.join(COMMANDS)}; may be repeated"
    parser.add_argument("--repair-with", action="append", default=[], metavar="ACT=COMMAND", help=may)
    deep = "has to find a repaired host fit; may be repeated (default with --repair-with: as `holdfast check`, less the log)"
    parser.add_argument("--repair-check", action="append", default=[], metavar="CHECK", help=deep)
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
    supervisor, google, users, repairs = _supervisor(options), _google(options), _users(options.allow_user), _repairs(options)
    root = os.environ.get(ROOT) or "/"
    watch = HostWatch(wanted(options.check, root), options.check_every, root)
    daemon = Daemon(home, options.host, _port(options.port), silence_s, google or supervisor, users, repairs, watch)
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


def _repairs(options: argparse.Namespace) -> HostRepairs:
    root = os.environ.get(ROOT) or "/"
    commands = dict(one.partition("=")[::2] for one in options.repair_with)
    for act, command in commands.items():
        if act not in COMMANDS:
            raise UsageError(f"--repair-with: {act!r} is no repair", hint=did_you_mean(act, COMMANDS))
        if not words_of(command, "--repair-with"):
            raise UsageError(f"--repair-with: {act} has no command", hint=f"write {act}=COMMAND")
    checks = wanted(options.repair_check, root)
    if commands and not checks:  # what the kernel's log remembers from before the repair is no finding
        checks = tuple(one for one in wanted(USUAL, root) if one.check.name not in OF_THE_LOG)
    return HostRepairs(commands, checks, root)


def _supervisor(options: argparse.Namespace) -> Supervisor | None:
    if not options.supervisor:
        alone = {"--supervisor-token-file": options.supervisor_token_file, "--tls-cert": options.tls_cert}
        alone |= {"--tls-key": options.tls_key, "--tls-ca": options.tls_ca}
        alone |= {"--repair-with": options.repair_with, "--repair-check": options.repair_check, "--check": options.check}
        if given := [flag for flag, value in alone.items() if value]:
            raise UsageError(f"{', '.join(given)}: only with --supervisor", hint="name the supervisor, or leave them out")
        return None
    endpoints = grammar.endpoints(options.supervisor, "--supervisor", default_port=SUPERVISOR_PORT)
    secret = token_of(options.supervisor_token_file, "--supervisor-token-file")
    shelter = shelter_of(options.tls_cert, options.tls_key, options.tls_ca)
    name = options.node_name or os.uname().nodename
    return Supervisor(endpoints=endpoints, node_name=name, secret=secret, shelter=shelter)


def _google(options: argparse.Namespace) -> GoogleServices | None:
    """Who hears of this host in Google's place of a supervisor."""
    others = {"--controller": (CONTROLLER, options.controller), "--actuator": (ACTUATOR, options.actuator)}
    if not options.sensor:
        more = {"--commands-at": options.commands_at, "--sensor-every": options.sensor_every}
        if given := [flag for flag, value in (more | {flag: one[1] for flag, one in others.items()}).items() if value]:
            raise UsageError(f"{', '.join(given)}: only with --sensor", hint="name Google's sensor, or leave them out")
        return None
    if options.supervisor:
        raise UsageError("--sensor and --supervisor: both would act on the same failure", hint="name one of them")
    named = {"--sensor": (SENSOR, options.sensor)} | {flag: one for flag, one in others.items() if one[1]}
    addresses = {service: _address(flag, at) for flag, (service, at) in named.items()}
    every = options.sensor_every or grammar.some_seconds(os.environ.get(EVERY_VARIABLE) or f"{BEAT_S:g}", EVERY_VARIABLE)
    commands = grammar.endpoint(options.commands_at, "--commands-at", default_port=None) if options.commands_at else None
    if commands is not None and is_any_address(commands[0]):
        why = f"--commands-at: {commands[0]} is every address of this host, and Google's actuator has to be told one"
        raise UsageError(why, hint=f"give the address at which other hosts reach this one, as 10.0.0.7:{commands[1]}")
    name = options.node_name or os.uname().nodename
    return GoogleServices(addresses=addresses, name=name, every_s=every, commands=commands)


def _address(flag: str, given: str) -> str:
    return grammar.shown_endpoint(*grammar.endpoint(given, flag, default_port=None))


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
