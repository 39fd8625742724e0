"""How the nodes meet: torchrun's ways of saying it, and what each becomes here."""

from __future__ import annotations

import pytest
from kit.stages.command_lines import STATIC, TWO, config, error, told, warnings

MEMORY = [
    (),
    ("--nproc-per-node", "8"),
    ("--standalone",),
    ("--rdzv-backend", "memory"),
    ("--nnodes", "1:1", "--rdzv-id", "job7"),
]


@pytest.mark.parametrize("argv", MEMORY)
def test_one_node_needs_no_server_and_a_fresh_port_each_round(argv):
    found = config(*argv)
    assert (found.rdzv_backend, found.rdzv_endpoint) == ("memory", "")
    assert (found.master_addr, found.master_port) == ("127.0.0.1", None)


def test_a_master_port_on_one_node_fixes_address_and_port():
    found = config("--master-port", "1234", "--master-addr", "node-a")
    assert (found.rdzv_backend, found.master_addr, found.master_port) == ("memory", "node-a", 1234)
    found = config("--rdzv-endpoint", "[::1]:1234")
    assert (found.rdzv_backend, found.master_addr, found.master_port) == ("memory", "::1", 1234)


def test_a_master_address_alone_does_nothing_on_one_node():
    found = config("--master-addr", "node-a")
    assert (found.master_addr, found.master_port) == ("127.0.0.1", None)


@pytest.mark.parametrize("address", ["300.1.1.1", "10.0.0", "10.0.0.7.1", "a b", "host/7"])
def test_an_address_that_nothing_can_have_is_refused_before_anything_starts(address):
    assert f"--local-addr: {address!r} is not a host name or address" in error("--local-addr", address)
    endpoint = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29400")
    assert f"{address!r} is not a host name or address" in error(*endpoint)


def test_a_local_address_is_the_masters_on_one_node():
    assert config("--local-addr", "10.0.0.7").master_addr == "10.0.0.7"


def test_standalone_forces_one_node_and_says_what_it_ignores():
    found = told("--standalone", "--rdzv-backend", "c10d", "--rdzv-endpoint", "a:1", "--rdzv-id", "mine", "--nnodes", "1:4")
    assert (found.config.rdzv_backend, found.config.max_nodes, found.config.rdzv_id) == ("memory", 1, "mine")
    text = "\n".join(notice.text for notice in found.notices)
    assert "--rdzv-backend and --rdzv-endpoint ignored" in text and "allows up to 4" in text
    assert "PET_NNODES asks for 2" in error("--standalone", env={"PET_NNODES": "2"})


def test_several_nodes_are_static_with_ranks_and_address_as_given():
    found = config("--nnodes", "2", "--node-rank", "1", "--master-addr", "node-a", "--master-port", "1234")
    assert (found.rdzv_backend, found.node_rank, found.rdzv_id) == ("static", 1, "none")
    assert (found.master_addr, found.master_port) == ("node-a", 1234)
    assert (found.rdzv_endpoint, found.rdzv_host, found.rdzv_port) == ("node-a:1235", "node-a", 1235)
    assert found.join_timeout_s == 900.0


def test_the_static_ports_default_to_torchruns():
    found = config(*STATIC)
    assert (found.master_port, found.rdzv_port) == (29500, 29501)
    assert config("--nnodes", "2").master_addr == "127.0.0.1"
    assert config(*STATIC, "--master-port", "65535").rdzv_port == 65534


def test_an_endpoint_alone_means_the_embedded_server():
    found = config("--nnodes", "2", "--rdzv-endpoint", "node-a:4000")
    assert (found.rdzv_backend, found.rdzv_endpoint, found.master_port) == ("embedded", "node-a:4000", None)
    assert config("--nnodes", "2", "--rdzv-backend", "static", "--rdzv-endpoint", "node-a:4000").rdzv_backend == "static"


def test_a_static_endpoint_is_the_masters_address():
    args = ("--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "node-a:4000")
    found = config(*args, "--rdzv-conf", "control_port=77,timeout=5")
    assert (found.rdzv_backend, found.master_addr, found.master_port) == ("static", "node-a", 4000)
    assert (found.rdzv_endpoint, found.join_timeout_s) == ("node-a:77", 5.0)


def test_a_static_range_means_its_upper_end():
    found = told("--nnodes", "2:4", "--master-addr", "a")
    assert (found.config.min_nodes, found.config.max_nodes) == (4, 4)
    assert "waiting for all 4" in found.notices[0].text


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("node-a:1234", "node-a:1234"),
        ("node-a", "node-a:29400"),
        ("10.0.0.7", "10.0.0.7:29400"),
        ("[fd00::7]:1234", "[fd00::7]:1234"),
        ("[fd00::7]", "[fd00::7]:29400"),
        ("fd00::7", "[fd00::7]:29400"),
        (" node_a:1 ", "node_a:1"),
        ("", "localhost:29400"),
    ],
)
def test_c10d_is_the_embedded_server_at_the_endpoint(given, meant):
    found = config("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", given)
    assert (found.rdzv_backend, found.rdzv_endpoint) == ("embedded", meant)
    assert (found.master_addr, found.master_port) == ("", None)


def test_holdfast_as_our_plug_in_is_called_under_torchrun_is_the_embedded_server_too():
    assert config("--nnodes", "2", "--rdzv-backend", "holdfast", "--rdzv-endpoint", "a:1").rdzv_backend == "embedded"


def test_a_mapped_backend_is_told_and_our_own_name_needs_no_word():
    (notice,) = told(*TWO).notices
    assert notice.level == "NOTE" and "c10d is served by our embedded server at a:1" in notice.text
    assert told("--nnodes", "2", "--rdzv-backend", "embedded", "--rdzv-endpoint", "a:1").notices == ()


@pytest.mark.parametrize("backend", [(), ("--rdzv-backend", "static"), ("--rdzv-backend", "c10d")])
def test_several_nodes_without_an_endpoint_are_told_that_only_this_host_reaches_it(backend):
    said = warnings("--nnodes", "2", *backend)
    assert "only agents on this host reach" in said and "give all nodes the same --rdzv-endpoint HOST:PORT" in said
    assert "only agents" not in warnings("--nnodes", "2", *backend, "--rdzv-endpoint", "a:1")


def test_whoever_gives_the_master_s_address_is_told_nothing():
    assert "only agents" not in warnings("--nnodes", "2", "--master-addr", "127.0.0.1")


def test_a_node_rank_that_nobody_reads_is_told():
    assert "--node-rank 1 is ignored" in warnings(*TWO, "--node-rank", "1")
    assert "PET_NODE_RANK 1 is ignored" in warnings(env={"PET_NODE_RANK": "1"})


def test_a_registered_backend_is_passed_on_as_it_is():
    found = config("--nnodes", "2", "--rdzv-backend", "raft", "--rdzv-endpoint", "weird://x", "--rdzv-conf", "own=1")
    assert (found.rdzv_backend, found.rdzv_endpoint, found.rdzv_conf) == ("raft", "weird://x", {"own": "1"})


def test_the_jobs_name_is_kept_made_up_or_none():
    assert config("--rdzv-id", "job7").rdzv_id == "job7"
    assert config(env={"PET_RDZV_ID": "job7"}).rdzv_id == "job7"
    assert config("--rdzv-id", "none").rdzv_id == "none"
    assert config().rdzv_id == config("--rdzv-id", "").rdzv_id == "fresh1"
    assert config(*TWO).rdzv_id == "none"
    assert "is empty" in warnings(*TWO, "--rdzv-id", "")


def test_durations_of_rdzv_conf_are_used():
    conf = "join_timeout=7,last_call_timeout=2,is_host=yes,close_timeout=9,heartbeat_timeout=5,read_timeout=60"
    found = told(*TWO, "--rdzv-conf", conf)
    assert (found.config.join_timeout_s, found.config.last_call_s, found.config.is_host) == (7.0, 2.0, True)
    assert found.origins["join_timeout_s"] == "--rdzv-conf"
    assert "close_timeout has no effect" in str([notice.text for notice in found.notices])
    assert not [notice for notice in found.notices if notice.level == "WARNING"]


@pytest.mark.parametrize(("conf", "meant"), [("join_timeout=7", 7.0), ("join_timeout=7,timeout=5", 5.0), ("rank=1", 900.0)])
def test_static_nodes_wait_as_long_as_either_word_says_and_torchrun_s_own_goes_first(conf, meant):
    assert config(*STATIC, "--rdzv-conf", conf).join_timeout_s == meant


def test_keep_alive_settings_give_the_lease_unless_it_was_given():
    conf = ("--rdzv-conf", "keep_alive_interval=5")
    assert config(*TWO).lease_s == 3.0
    assert config(*TWO, *conf).lease_s == 15.0
    assert config(*TWO, "--rdzv-conf", "keep_alive_interval=5,keep_alive_max_attempt=2").lease_s == 10.0
    assert config(*TWO, *conf, "--lease", "4").lease_s == 4.0


def test_a_key_that_nobody_reads_is_named_with_the_nearest_one():
    assert "nothing reads 'join_timout' (did you mean join_timeout?)" in warnings(*TWO, "--rdzv-conf", "join_timout=7")


@pytest.mark.parametrize(
    ("given", "endpoint", "meant"),
    [
        ("etcd-server", "etcd-server:2379", ("etcd-server", 2379)),
        ("a:1,b,[::1]", "a:1,b:2379,[::1]:2379", ("a", 1)),
    ],
)
def test_etcd_s_members_are_told_as_one_list_with_its_own_default_port(given, endpoint, meant):
    found = config("--nnodes", "1:2", "--rdzv-backend", "etcd", "--rdzv-endpoint", given)
    assert (found.rdzv_backend, found.rdzv_endpoint, (found.rdzv_host, found.rdzv_port)) == ("etcd", endpoint, meant)
    assert (found.master_addr, found.master_port) == ("", None)


@pytest.mark.parametrize("given", ["http://a:2379", "a,,b", "a,"])
def test_what_is_no_member_of_etcd_is_refused_with_the_way_to_name_one(given):
    said = error("--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", given)
    assert "is not a member of etcd" in said and "HOST:2379" in said and "protocol=https" in said


def test_the_command_line_of_pytorch_s_etcd_example_is_taken_as_it_stands():
    line = ("--nnode=1", "--nproc_per_node=2", "--rdzv_endpoint=etcd-server")
    found = config(*line, env={"PET_RDZV_BACKEND": "etcd"})
    assert (found.rdzv_backend, found.max_nodes, found.nproc_per_node, found.rdzv_id) == ("etcd", 1, 2, "none")


def test_etcd_v2_is_served_by_etcd_with_one_line_that_says_so():
    found = told("--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "a")
    (notice,) = [notice for notice in found.notices if "etcd" in notice.text]
    assert found.config.rdzv_backend == "etcd" and notice.level == "NOTE" and "version 3" in notice.text


def test_the_way_to_etcd_is_told_by_torchrun_s_names():
    conf = "protocol=https,cacert=ca.pem,cert=c.pem,key=k.pem,user=u,password=p,etcd_prefix=/x"
    line = ("--nnodes", "2", "--rdzv-endpoint", "a", "--rdzv-conf", conf)
    assert "nothing reads" not in warnings("--rdzv-backend", "etcd", *line)
    assert "nothing reads" in warnings("--rdzv-backend", "c10d", *line)


@pytest.mark.parametrize("key", ["timeout", "join_timeout"])
def test_etcd_s_join_timeout_has_both_of_torchrun_s_names(key):
    line = ("--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", "a")
    assert config(*line, "--rdzv-conf", f"{key}=7").join_timeout_s == 7


@pytest.mark.parametrize(("given", "ports"), [("0", (0, 0)), ("29410", (29410, 29410)), ("29410-29419", (29410, 29419))])
def test_an_agent_s_port_is_one_or_the_first_free_of_a_range(given, ports):
    assert config(*TWO, "--agent-port", given).agent_ports == ports
    assert config(*TWO, env={"HOLDFAST_AGENT_PORT": given}).agent_ports == ports


@pytest.mark.parametrize("given", ["29419-29410", "0-9", "x", "1-70000"])
def test_what_is_no_port_of_an_agent_is_an_error(given):
    assert "--agent-port" in error(*TWO, "--agent-port", given)


def test_an_agent_s_port_means_nothing_where_no_agent_takes_over():
    assert "--agent-port is ignored" in warnings(*STATIC, "--agent-port", "29410")
    assert "ignored" not in warnings(*STATIC, env={"HOLDFAST_AGENT_PORT": "29410"})


def test_a_witness_is_for_nodes_that_choose_a_successor_and_a_variable_for_all_jobs_is_no_mistake():
    assert "--witness is ignored" in warnings("--witness", "/shared")
    assert "--on-split is ignored" in warnings(*STATIC, "--on-split", "continue")
    assert "ignored" not in warnings(*TWO, "--witness", "/shared")
    assert "ignored" not in warnings(env={"HOLDFAST_WITNESS": "/shared"})
