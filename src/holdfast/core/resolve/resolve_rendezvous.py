"""How do this job's nodes find each other, and where do the workers meet? torchrun's rules, mapped to our backends.

situation                                               ours       workers' MASTER_ADDR:PORT
--standalone, or one node and nothing more said         memory     127.0.0.1, a fresh port each round
one node with --master-port, or static with endpoint    memory     exactly as given
static, several nodes                                   static     exactly as given; ranks by --node-rank
c10d or embedded; or an endpoint alone, without ranks   embedded   the node of group rank 0, a fresh port each round
etcd or etcd-v2                                         etcd       the same; etcd elects who serves
a name registered in group torchrun.handlers            that one   whatever it says
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.draft import Draft
from holdfast.core.config.fault_tolerance import RestartPolicy
from holdfast.core.config.own_options import Membership
from holdfast.core.errors import UsageError
from holdfast.core.wire.messages import LONGEST_LEASE_S

BACKENDS = ("static", "c10d", "embedded", "memory", "etcd", "etcd-v2")
ETCD = ("etcd", "etcd-v2")
ETCD_PORT = 2379  # etcd's own port for clients.
_TORCH_ETCD_KEYS = ("etcd_prefix", "ssl_cert", "ssl_cert_key", "ca_cert")
ETCD_KEYS = ("protocol", "cert", "key", "cacert", "user", "password", "password_file", *_TORCH_ETCD_KEYS)
"""What --rdzv-conf may say about the way to etcd: torchrun's names, of both its etcd backends, and the credentials."""
EMBEDDED_PORT, MASTER_PORT = 29400, 29500  # torchrun's c10d and static ports.
SHORTEST_LEASE_S = 0.1  # Below it a lease is over before a busy host has renewed it, again and again.
LOCAL = "127.0.0.1"  # MASTER_ADDR of a job on one node: no name to look up, no interface to choose.

DURATIONS = (
    "timeout",
    "read_timeout",
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
)
KNOWN_KEYS = (
    *DURATIONS,
    "keep_alive_max_attempt",
    "rank",
    "store_type",
    "is_host",
    "control_port",
    "replacement_group_size",
    "store_connect_wait_seconds",
    "use_libuv",
    "segment_check_interval",
)
"""The last three are ft_launcher's, for its store and its poll, of which we have neither."""


def choose_rendezvous(draft: Draft) -> None:
    """Settle everything about the rendezvous."""
    conf = draft.values["rdzv_conf"]
    draft.keep("rdzv_conf", conf)
    if "password" in conf and draft.origin("rdzv_conf").startswith("--"):
        ways = "password_file=FILE, or HOLDFAST_ETCD_PASSWORD"
        draft.warn(f"{draft.name('rdzv_conf')} password=…: everybody on this host sees command lines: give {ways}")
    backend = _backend(draft)
    SETTLED_BY.get(backend, _registered)(draft)
    if draft.origin("agent_port").startswith("--") and draft.fields["rdzv_backend"] not in ("embedded", "etcd"):
        draft.warn(f"{draft.name('agent_port')} is ignored: only agents that may take over the coordinator listen")
    _job_id(draft)
    _timing(draft, conf, backend)


def _backend(draft: Draft) -> str:
    asked, name = draft.text("rdzv_backend"), draft.name("rdzv_backend")
    if draft.on("standalone"):
        return _standalone(draft)
    if asked in ETCD:
        return "etcd"
    asked = {"c10d": "embedded", "holdfast": "embedded"}.get(asked, asked)  # the second: our plug-in's name under torchrun
    if asked not in BACKENDS:
        return _known_elsewhere(draft, asked)
    of_itself = not draft.given("rdzv_backend")
    if draft.fields["max_nodes"] == 1:  # the second: ft_launcher's c10d, which it has without being told
        return "memory" if asked == "static" or (of_itself and not draft.given("rdzv_endpoint")) else asked
    if of_itself and draft.given("rdzv_endpoint") and not draft.given("node_rank"):
        return "embedded"  # an endpoint and no ranks: torchrun would take every node for rank 0 of a static job
    if asked == "memory":
        raise UsageError(
            f"{name}: memory is for one node, and --nnodes asks for up to {draft.fields['max_nodes']}",
            hint="use c10d, or --nnodes 1",
        )
    return asked


def _known_elsewhere(draft: Draft, asked: str) -> str:
    """A backend that somebody has registered with torchrun. UsageError: nobody has."""
    registered = draft.host.entry_points("torchrun.handlers")
    if asked in registered:
        return asked
    known = [*BACKENDS, *registered]
    meant = f"did you mean {found}? " if (found := grammar.nearest(asked, known)) else ""
    what = f"{draft.name('rdzv_backend')}: there is no rendezvous backend {asked!r}"
    raise UsageError(what, hint=f"{meant}known: {', '.join(known)}")


def _standalone(draft: Draft) -> str:
    low, high = draft.fields["min_nodes"], draft.fields["max_nodes"]
    if low > 1:
        raise UsageError(
            f"{draft.name('standalone')}: one node, but {draft.name('nnodes')} asks for {low}",
            hint="leave one of them out; several nodes need --rdzv-endpoint",
        )
    if high > 1:
        draft.put("max_nodes", 1, "derived: --standalone")
        draft.warn(f"--standalone: running on this node alone, although {draft.name('nnodes')} allows up to {high}")
    ignored = [draft.name(dest) for dest in ("rdzv_backend", "rdzv_endpoint") if draft.given(dest)]
    if ignored:
        draft.warn(f"--standalone: {' and '.join(ignored)} ignored")
    return "memory"


def _memory(draft: Draft) -> None:
    """One node: no server. The master's address is fixed only where the user fixed it."""
    why = "derived: --standalone" if draft.on("standalone") else "derived: one node needs no server"
    draft.put("rdzv_backend", "memory", draft.origin("rdzv_backend") if draft.text("rdzv_backend") == "memory" else why)
    endpoint, port = draft.text("rdzv_endpoint"), draft.values["master_port"]
    local = draft.fields["local_addr"]
    draft.put("master_addr", local or LOCAL, draft.origin("local_addr") if local else "derived: one node")
    draft.put("master_port", None, "derived: a free one each round")
    if draft.on("standalone"):
        return
    if endpoint:
        host, port = grammar.endpoint(endpoint, draft.name("rdzv_endpoint"), default_port=None)
        draft.put("master_addr", host, draft.origin("rdzv_endpoint"))
        draft.put("master_port", port or None, draft.origin("rdzv_endpoint"))
    elif port is not None:
        draft.keep("master_addr", grammar.host(draft.text("master_addr"), draft.name("master_addr")) or LOCAL)
        draft.keep("master_port", port or None)
    if draft.fields["node_rank"] > 0:
        draft.warn(f"{draft.name('node_rank')} {draft.fields['node_rank']} is ignored: the job has one node (see --nnodes)")


def _static(draft: Draft) -> None:
    """Ranks and address are given; we add only a control connection beside the workers' own."""
    node_rank, control = draft.fields["node_rank"], draft.fields["rdzv_conf"].get("control_port")
    nodes = draft.fields["max_nodes"]
    if draft.fields["min_nodes"] != nodes:
        draft.warn(f"the static backend has no range of nodes: waiting for all {nodes}")
        draft.put("min_nodes", nodes, "derived: the static backend takes all nodes or none")
    if node_rank >= nodes:
        raise UsageError(
            f"{draft.name('node_rank')}: {node_rank} is not below the number of nodes, {nodes}",
            hint=f"ranks are 0 to {nodes - 1}",
        )
    if text := draft.text("rdzv_endpoint"):
        host, port = grammar.endpoint(text, draft.name("rdzv_endpoint"), default_port=None)
        origins = "rdzv_endpoint", "rdzv_endpoint"
    else:
        given = draft.values["master_port"]
        host = grammar.host(draft.text("master_addr"), draft.name("master_addr")) or ""
        if not host:
            hint = "if it was $SOMETHING, that variable is empty"
            raise UsageError(f"{draft.name('master_addr')}: where is the node of rank 0?", hint=hint)
        port = MASTER_PORT if given is None else given
        origins = "master_addr", "master_port"
        if not draft.given("master_addr"):
            _warn_of_loopback(draft, host, port)
    if port == 0:
        raise UsageError(
            f"port 0: {nodes} nodes cannot meet on a port that none of them knows", hint=f"give one, such as {MASTER_PORT}"
        )
    draft.keep("rdzv_backend", "static")
    draft.keep(origins[0], host, "master_addr")
    draft.keep(origins[1], port, "master_port")
    if control is None:
        beside = port + 1 if port < grammar.MAX_PORT else port - 1
        _meet_at(draft, host, beside, "derived: beside the workers' port (rdzv-conf control_port)")
    else:
        _meet_at(draft, host, grammar.port_number(control, f"{draft.name('rdzv_conf')} control_port"), draft.name("rdzv_conf"))


def _embedded(draft: Draft) -> None:
    asked, text, name = draft.text("rdzv_backend"), draft.text("rdzv_endpoint"), draft.name("rdzv_endpoint")
    store = draft.fields["rdzv_conf"].get("store_type", "tcp")
    if store != "tcp":
        raise UsageError(f"{draft.name('rdzv_conf')}: store_type={store} is not supported", hint="leave it out")
    by_itself = not draft.given("rdzv_backend") and asked == "c10d"  # ft_launcher's, whose port is the workers' usual one
    origin = "default" if by_itself else "derived: an endpoint, and no --node-rank"
    if draft.given("rdzv_backend"):
        origin = draft.origin("rdzv_backend") + (f" {asked}" if asked != "embedded" else "")
    draft.put("rdzv_backend", "embedded", origin)
    host, port = grammar.endpoint(text, name, default_port=MASTER_PORT if by_itself else EMBEDDED_PORT)
    alone = draft.fields["max_nodes"] == 1
    if port == 0 and not alone:
        raise UsageError(
            f"{name}: port 0: the other nodes would not know which port it is", hint=f"give one, such as {host}:{EMBEDDED_PORT}"
        )
    if not text and not alone:
        _warn_of_loopback(draft, host, port)
    if asked not in ("embedded", "static") and not by_itself:
        draft.tell("NOTE", f"--rdzv-backend {asked} is served by our embedded server at {grammar.shown_endpoint(host, port)}")
    _meet_at(draft, host, port, draft.origin("rdzv_endpoint"))
    _ranks_by_coordinator(draft)


def _warn_of_loopback(draft: Draft, host: str, port: int) -> None:
    where = f"nodes meet at {host}:{port}, which only agents on this host reach"
    draft.warn(f"no --rdzv-endpoint: {where}: give all nodes the same --rdzv-endpoint HOST:PORT")


def _etcd(draft: Draft) -> None:
    """etcd elects the agent that hosts the coordinator; everybody else is told by it where that is."""
    asked, text, name = draft.text("rdzv_backend"), draft.text("rdzv_endpoint"), draft.name("rdzv_endpoint")
    if not text:
        raise UsageError(
            f"{draft.name('rdzv_backend')}: {asked}: where is etcd?",
            hint=f"--rdzv-endpoint HOST:{ETCD_PORT}, or several of them, separated by commas",
        )
    for one in text.split(","):
        if not one.strip() or "://" in one:
            hint = f"give HOST:{ETCD_PORT}, several with commas; for TLS --rdzv-conf protocol=https"
            raise UsageError(f"{name}: {one.strip()!r} is not a member of etcd", hint=hint)
    found = [grammar.endpoint(one, name, default_port=ETCD_PORT) for one in text.split(",")]
    draft.keep("rdzv_backend", "etcd")
    _meet_at(draft, *found[0], draft.origin("rdzv_endpoint"))
    draft.keep("rdzv_endpoint", ",".join(grammar.shown_endpoint(*one) for one in found))
    if asked == "etcd-v2":
        draft.tell("NOTE", "--rdzv-backend etcd-v2 is served by our etcd backend, which speaks etcd's version 3 API")
    _ranks_by_coordinator(draft)


def _ranks_by_coordinator(draft: Draft) -> None:
    if draft.fields["node_rank"] and draft.name("node_rank") != "PET_NODE_RANK":  # that one orders the nodes
        draft.warn(f"{draft.name('node_rank')} {draft.fields['node_rank']} is ignored: only the static backend takes ranks")
    draft.put("master_addr", "", "derived: the node of group rank 0 gives its own")
    draft.put("master_port", None, "derived: a fresh one each round")


def _registered(draft: Draft) -> None:
    draft.keep("rdzv_backend", draft.text("rdzv_backend"))
    draft.keep("rdzv_endpoint", draft.text("rdzv_endpoint"))


SETTLED_BY = {"memory": _memory, "static": _static, "embedded": _embedded, "etcd": _etcd}
"""Our backends; any other is a registered one."""


def _meet_at(draft: Draft, host: str, port: int, origin: str) -> None:
    draft.put("rdzv_endpoint", grammar.shown_endpoint(host, port), origin)
    draft.put("rdzv_host", host, origin)
    draft.put("rdzv_port", port, origin)


def _job_id(draft: Draft) -> None:
    """The user's name for the job; a fresh one if no other node has to know it."""
    text = draft.text("rdzv_id")
    if text and draft.given("rdzv_id"):
        draft.keep("rdzv_id", text)
    elif draft.fields["rdzv_backend"] == "memory":
        draft.put("rdzv_id", draft.host.fresh_id(), "derived: nobody else has to know it")
    else:
        if not text:
            draft.warn(f"{draft.name('rdzv_id')} is empty: the job is called none, as is every job without a name")
        draft.put("rdzv_id", "none", "default")


def _bears_losses(draft: Draft) -> bool:
    """Is the policy min-healthy? Its field is settled later."""
    policy = draft.settings.get("ft_restart_policy")
    return policy is not None and str(policy.value).lower() == RestartPolicy.MIN_HEALTHY


def _timing(draft: Draft, conf: dict[str, str], backend: str) -> None:
    name = draft.name("rdzv_conf")
    durations = _durations(draft, conf, backend) if backend in BACKENDS else {}
    if "close_timeout" in durations:
        draft.tell("NOTE", f"{name} close_timeout has no effect: a job ends by itself")
    said = {"static": ("timeout", "join_timeout"), "etcd": ("join_timeout", "timeout")}.get(backend, ("join_timeout",))
    join = next((key for key in said if key in durations), "")
    fixed = draft.fields["membership"] == Membership.FIXED
    usual = 900.0 if backend == "static" else 300.0 if fixed else 600.0
    draft.put("join_timeout_s", durations.get(join, usual), name if join else "default")
    nobody_waits = fixed and not _bears_losses(draft)  # no more nodes are taken than have to come
    last_call = durations.get("last_call_timeout", 1.0 if nobody_waits else 30.0)
    draft.put("last_call_s", last_call, name if "last_call_timeout" in durations else "default")
    _lease(draft, conf, durations)
    if "is_host" in conf:
        draft.put("is_host", grammar.truth(conf["is_host"], f"{name} is_host"), name)


def _durations(draft: Draft, conf: dict[str, str], backend: str) -> dict[str, float]:
    name, known = draft.name("rdzv_conf"), (*KNOWN_KEYS, *ETCD_KEYS) if backend == "etcd" else KNOWN_KEYS
    for key in conf:
        if key not in known:
            draft.warn(f"{name}: nothing reads {key!r} ({grammar.did_you_mean(key, known)})")
    return {key: grammar.seconds(conf[key], f"{name} {key}", zero=False) for key in DURATIONS if key in conf}


def _lease(draft: Draft, conf: dict[str, str], durations: dict[str, float]) -> None:
    name = draft.name("rdzv_conf")
    if "keep_alive_interval" in durations and not draft.given("lease"):
        attempts = grammar.whole(conf.get("keep_alive_max_attempt", "3"), f"{name} keep_alive_max_attempt", at_least=1)
        draft.put("lease_s", durations["keep_alive_interval"] * attempts, f"{name} keep_alive_interval x {attempts}")
    if not SHORTEST_LEASE_S <= (lease_s := draft.fields["lease_s"]) <= LONGEST_LEASE_S:
        what = draft.name("lease") if draft.given("lease") else draft.origins["lease_s"]
        too = "long" if lease_s > LONGEST_LEASE_S else "short"
        hint = f"give {SHORTEST_LEASE_S:g} seconds or more, and a day ({LONGEST_LEASE_S:g}) at most"
        raise UsageError(f"{what}: {lease_s:g} s is too {too}", hint=hint)
    if lease_s > LONGEST_LEASE_S:
        raise UsageError(f"{what}: {lease_s:g} s is too long", hint=f"give at most {LONGEST_LEASE_S:g} seconds, a day")
