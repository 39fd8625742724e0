"""`holdfast supervisor`: know the nodes of many jobs, and take those out that are not fit. One process; jobs do without."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Iterable

from holdfast.cli.arguments import reads
from holdfast.cli.fleet.notify import checked as notify
from holdfast.cli.fleet.notify import receivers, receivers_of
from holdfast.cli.fleet.supervisor_here import folder_of, state_argument, tls_arguments, token_of, words_of
from holdfast.cli.fleet.web import checked, http_arguments
from holdfast.cli.node.token import check_token_file
from holdfast.core.config import grammar
from holdfast.core.config.grammar import did_you_mean
from holdfast.core.config.own_options import SUPERVISOR_PORT
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.wire.fleet import Act
from holdfast.runtime.host import caught
from holdfast.runtime.net.addresses import is_loopback
from holdfast.runtime.secrets import shelter_of
from holdfast.supervisor.fleet.policies import POLICIES, policy
from holdfast.supervisor.fleet.repairs import LADDER
from holdfast.supervisor.fleet.state import RepairRules
from holdfast.supervisor.orchestrator import ORCHESTRATORS, orchestrator
from holdfast.supervisor.service import Service
from holdfast.supervisor.standby import lead
from holdfast.supervisor.store import LeadLost, check_store, open_store
from holdfast.supervisor.web.serve import missing
from holdfast.telemetry.report.safe_text import plain

HELP = "know the nodes of all jobs, replace those that are not fit, and remember why"

REPAIRS = (*(str(rung.act) for rung in LADDER), str(Act.REPORT))

PER_HOUR = 2
"""A fault of all nodes, such as a driver's, must not reboot a fleet before somebody looks."""

PROBATION_S = 86400.0

LABELS_HINT = "such as reboot=cloud.google.com/perform-reboot=true"

LEASE_S = 5.0
"""A node that is silent for so long counts as lost: a little more than a job's own lease (3 s), whose word is waited for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    here, who = f"127.0.0.1:{SUPERVISOR_PORT}", _either(ORCHESTRATORS)
    parser.add_argument("--listen", default=here, metavar="HOST:PORT", help="where agents come to (default: %(default)s)")
    state_argument(parser)
    parser.add_argument(
        "--store",
        default="",
        metavar="URL",
        help="etcd://HOST:PORT[,…]/PREFIX or kubernetes://NAME, where one of several leads (default: a file)",
    )
    parser.add_argument("--policy", default="default", metavar="NAME", help=f"{_either(POLICIES)} (default: %(default)s)")
    many = "a limit of the policy google; may be repeated"
    parser.add_argument("--policy-option", action="append", default=[], metavar="NAME=VALUE", help=many)
    parser.add_argument("--orchestrator", default="local", metavar="NAME", help=f"{who} (default: %(default)s)")
    starts = "local, slurm: starts another node's agent; reads the reason as JSON"
    parser.add_argument("--replace-with", default="", metavar="COMMAND", help=starts)
    gives = "so long the orchestrator takes to give another node, until a job runs with it (default: as long as the last did)"
    parser.add_argument("--replacement-time", type=reads(grammar.some_seconds), metavar="S", help=gives)
    acts = f"allow a repair of nodes that were taken out: ACT is {', '.join(REPAIRS)}; with LABEL (KEY=VALUE) the cloud of"
    parser.add_argument(
        "--repair", action="append", default=[], metavar="ACT[=LABEL]", help=f"{acts} Kubernetes does it; may be repeated"
    )
    many_at_once = "commands of --repair that may begin in an hour, over the fleet (default: %(default)s)"
    parser.add_argument("--repairs-per-hour", type=reads(_some), default=PER_HOUR, metavar="N", help=many_at_once)
    again = "how long a repaired node may not be taken out again (default: a day)"
    parser.add_argument("--probation", type=reads(grammar.some_seconds), default=PROBATION_S, metavar="S", help=again)
    parser.add_argument(
        "--lease",
        type=reads(grammar.seconds),
        default=LEASE_S,
        metavar="S",
        help="silence that makes a node lost (%(default)g)",
    )
    parser.add_argument("--token-file", metavar="FILE", help="the secret that agents have to know ($HOLDFAST_SUPERVISOR_TOKEN)")
    tls_arguments(parser, "agents")
    parser.add_argument("--tls-names", action="store_true", help="each agent's certificate has to be for its own node")
    http_arguments(parser, "; off: nowhere")
    receivers(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    host, port = grammar.endpoint(options.listen, "--listen", default_port=SUPERVISOR_PORT)
    token = token_of(options.token_file, "--token-file")
    if options.token_file and (unwise := check_token_file(options.token_file, "--token-file", "speak for your nodes")):
        _say(unwise)
    if not token and not is_loopback(host):
        raise UsageError(
            f"--listen: without a token, anybody who reaches {options.listen} could speak for your nodes",
            hint="make one with `holdfast token --write FILE`, and give it here and to each agent (--supervisor-token-file)",
        )
    if not options.lease >= 0.1:
        raise UsageError(f"--lease: {options.lease:g} is too short", hint="give at least 0.1 s")
    folder, (web, http) = folder_of(options), _web(options)
    chosen = policy(options.policy, options.policy_option, os.environ)
    shelter = shelter_of(options.tls_cert, options.tls_key, options.tls_ca)
    if options.tls_names and shelter is None:
        raise UsageError("--tls-names: there are no certificates", hint="give --tls-cert, --tls-key and --tls-ca too")
    if options.store and not port:
        hint = "choose a port: agents are told where each of several supervisors is before it leads"
        raise UsageError(f"--listen: {options.listen} with --store: agents could not find a random port", hint=hint)
    check_store(options.store)
    command, repair = words_of(options.replace_with, "--replace-with"), _repair(options)
    to_tell = receivers_of(options)
    # Nothing is made before all that may be wrong has been looked at.
    calls = orchestrator(options.orchestrator, folder, command)
    store = open_store(options.store, folder, f"{socket.gethostname()} ({options.listen})")
    told = notify(options, folder, *to_tell)

    signals, _ = caught((signal.SIGTERM, signal.SIGINT))  # of all its lives: what comes between two ends it too

    def one_life() -> None:
        nonlocal port  # any, the first time: then agents know it
        service = Service(
            endpoint=(host, port),
            token=token,
            folder=folder,
            store=store,
            policy=chosen,
            orchestrator=calls,
            lease_s=options.lease,
            say=_say,
            signals=signals,
            shelter=shelter,
            named=options.tls_names,
            web=web,
            http=http,
            notify=told,
            repair=repair,
            given_in_s=options.replacement_time,
        )
        try:
            if not service.listen():
                hint = "does another supervisor run? choose another port"
                raise HoldfastError(f"--listen: {options.listen} is taken", hint=hint)
            _, port = service.network.endpoint
            life = f"policy {chosen.name}, generation {service.fleet.state.rules.generation}"
            print(f"listening at {service.network.listens_at}, {life}", flush=True)
            service.run()
        finally:
            service.close()

    try:
        while lead(store, folder, _say, signals):
            try:
                one_life()
                break
            except LeadLost as lost:
                _say(f"{lost.what}: it acts no more until it leads again")
    finally:
        store.close()
    return 0


def _repair(options: argparse.Namespace) -> RepairRules:
    """What may be repaired. UsageError: there is no such act, or nobody would act on the label."""
    labels = dict(one.partition("=")[::2] for one in options.repair)
    for act, label in labels.items():
        if act not in REPAIRS:
            raise UsageError(f"--repair: {act!r} is no repair", hint=did_you_mean(act, REPAIRS))
        if label and options.orchestrator != "kubernetes":
            raise UsageError(f"--repair {act}={label}: labels are for --orchestrator kubernetes", hint=f"write --repair {act}")
        if (label and not label.partition("=")[2]) or (label and act == Act.CHECK) or (act == Act.REPORT and not label):
            raise UsageError(f"--repair: {act}={label} has no KEY=VALUE, or needs none", hint=LABELS_HINT)
    return RepairRules(labels=labels, per_hour=options.repairs_per_hour, probation_s=options.probation)


def _some(text: str, name: str) -> int:
    return grammar.whole(text, name, at_least=1)


def _say(text: str) -> None:
    print(f"holdfast supervisor: {plain(text, keep='')}", file=sys.stderr, flush=True)


def _either(names: Iterable[str]) -> str:
    """`local, slurm or kubernetes`."""
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _web(options: argparse.Namespace) -> tuple[list[str], tuple[str, int] | None]:
    """The arguments of `holdfast web`, and where it serves; none: it is not wanted, or cannot be had. UsageError: they make no
    sense."""
    if options.http == "off":
        return [], None
    host, port, _, _ = checked(options)
    if lacks := missing():
        _say(f"no HTTP API and no dashboard: {lacks} not installed (pip install 'holdfast[supervisor]')")
        return [], None
    given = {"--http": options.http, "--http-token-file": options.http_token_file, "--state": folder_of(options)}
    given |= {"--http-cert": options.http_cert, "--http-key": options.http_key}
    return [word for name, value in given.items() if value for word in (name, value)], (host, port)
