"""What every rendezvous shares: parameters, registry, exceptions, endpoints, settings, the timer. torch's and ours alike."""

from __future__ import annotations

import gc
import socket
import sys
import threading
from datetime import timedelta
from unittest.mock import patch

import pytest


def make_params(names, **given):
    fields = dict(backend="mine", endpoint="somewhere", run_id="job", min_nodes=2, max_nodes=4)
    return names("rendezvous").RendezvousParameters(**fields | given)


def handler_class(names, backend="mine"):
    class Handler(names("rendezvous").RendezvousHandler):
        def __init__(self, params):
            self.params = params

        def get_backend(self):
            return backend

        def next_rendezvous(self): ...
        def is_closed(self): ...
        def set_closed(self): ...
        def num_nodes_waiting(self): ...
        def get_run_id(self): ...
        def shutdown(self): ...

    return Handler


def test_parameters_keep_what_they_are_given(names):
    params = make_params(names, local_addr="10.0.0.1", colour="red")
    assert (params.backend, params.endpoint, params.run_id, params.min_nodes, params.max_nodes) == (
        "mine",
        "somewhere",
        "job",
        2,
        4,
    )
    assert params.local_addr == "10.0.0.1" and params.config == {"colour": "red"}
    assert params.get("colour") == "red" and params.get("size") is None and params.get("size", default=3) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": ""}, r"^The rendezvous backend name must be a non-empty string\.$"),
        ({"backend": None}, r"^The rendezvous backend name must be a non-empty string\.$"),
        ({"min_nodes": 0}, r"^The minimum number of rendezvous nodes \(0\) must be greater than zero\.$"),
        (
            {"max_nodes": 1},
            r"^The maximum number of rendezvous nodes \(1\) must be greater than or equal to "
            r"the minimum number of rendezvous nodes \(2\)\.$",
        ),
    ],
)
def test_impossible_parameters_are_refused(names, given, said):
    with pytest.raises(ValueError, match=said):
        make_params(names, **given)


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        *((word, True) for word in ("1", "tRue", "T", "yEs", "y", 1, True)),
        *((word, False) for word in ("0", "FALSE", "f", "nO", "n", 0, False)),
    ],
)
def test_truth_is_written_in_many_ways(names, value, truth):
    assert make_params(names, on=value).get_as_bool("on") is truth


@pytest.mark.parametrize("value", ["01", "Ture", "", "truefalse", 2, -1, 1.0, []])
def test_anything_else_is_no_truth(names, value):
    with pytest.raises(ValueError, match="'on' does not represent a valid boolean value"):
        make_params(names, on=value).get_as_bool("on")


def test_whole_numbers(names):
    params = make_params(names, a=" 4 ", b=-10, c="3b")
    assert params.get_as_int("a") == 4 and params.get_as_int("b") == -10
    assert (
        params.get_as_int("none") is None
        and params.get_as_int("none", default=5) == 5
        and params.get_as_bool("none", True) is True
    )
    with pytest.raises(ValueError, match="'c' does not represent a valid integer value"):
        params.get_as_int("c")


def test_a_registry_makes_handlers_by_name(names):
    registry = names("rendezvous").RendezvousHandlerRegistry()
    registry.register("mine", handler_class(names))
    params = make_params(names)
    assert registry.create_handler(params).params is params


def test_a_registry_takes_one_creator_for_a_name(names):
    registry = names("rendezvous").RendezvousHandlerRegistry()
    first, second = handler_class(names), handler_class(names)
    registry.register("mine", first)
    registry.register("mine", first)
    with pytest.raises(ValueError) as refused:
        registry.register("mine", second)
    assert f"'mine' cannot be registered with '{second}' as it is already registered with '{first}'" in str(refused.value)
    with pytest.raises(ValueError, match="non-empty"):
        registry.register("", first)


def test_a_registry_knows_what_it_has_not(names):
    registry = names("rendezvous").RendezvousHandlerRegistry()
    with pytest.raises(ValueError, match=r"'mine' is not registered\. Did you forget to call `register`\?$"):
        registry.create_handler(make_params(names))
    registry.register("other", handler_class(names))
    with pytest.raises(RuntimeError, match="'mine' does not match the requested backend 'other'"):
        registry.create_handler(make_params(names, backend="other"))


def test_the_global_registry_has_torchs_backends(names):
    registered = names("rendezvous").rendezvous_handler_registry._registry
    assert {"etcd", "etcd-v2", "c10d", "static"} <= set(registered)


def test_backends_of_installed_packages_are_registered(names, tmp_path, monkeypatch):
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[torchrun.handlers]\ntheirs_{names} = theirs_{names}:get\nbroken_{names} = nowhere_{names}:get\n"
    )
    (tmp_path / f"theirs_{names}.py").write_text("def get():\n    return make\n\ndef make(params):\n    return 'made'\n")
    monkeypatch.syspath_prepend(tmp_path)
    rendezvous = names("rendezvous")
    rendezvous._register_out_of_tree_handlers()
    registered = rendezvous.rendezvous_handler_registry._registry
    assert registered.pop(f"theirs_{names}")(None) == "made"
    assert f"broken_{names}" not in registered


def test_all_failures_are_rendezvous_errors(names):
    rendezvous = names("rendezvous")
    for kind in ("Closed", "Timeout", "Connection", "State", "GracefulExit"):
        assert issubclass(getattr(rendezvous, f"Rendezvous{kind}Error"), rendezvous.RendezvousError)


class Shelf(dict):
    def get(self, key):
        return self[key]

    def set(self, key, value):
        self[key] = value


def test_rank_0_publishes_where_the_workers_meet(names):
    info = names("rendezvous").RendezvousStoreInfo
    store = Shelf()
    published = info.build(rank=0, store=store, local_addr="10.0.0.1", server_port=4711)
    assert published == info("10.0.0.1", 4711) == info.build(rank=1, store=store, local_addr="10.0.0.2")
    assert store == {"MASTER_ADDR": b"10.0.0.1", "MASTER_PORT": b"4711"}


def test_without_an_address_or_port_they_are_found(names):
    api = names("rendezvous.api")
    with patch.object(api, "get_free_port", return_value=1234), patch.object(api.socket, "getfqdn", return_value="me.example"):
        assert api.RendezvousStoreInfo.build(0, Shelf(), None) == api.RendezvousStoreInfo("me.example", 1234)


def test_a_handler_does_not_share_its_store_unless_it_says_so(names):
    assert handler_class(names)(None).use_agent_store is False


@pytest.mark.parametrize(
    ("text", "settings"),
    [("", {}), ("  ", {}), (" b= two ,a=one=1,c =x/y", {"a": "one=1", "b": "two", "c": "x/y"})],
)
def test_settings_are_pairs(names, text, settings):
    assert names("rendezvous.utils")._parse_rendezvous_config(text) == settings


@pytest.mark.parametrize("text", ["a=1,", "a=1,,b=2", "a=1, = ,b=2", " , "])
def test_a_setting_needs_a_key(names, text):
    with pytest.raises(
        ValueError, match=r"^The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.$"
    ):
        names("rendezvous.utils")._parse_rendezvous_config(text)


@pytest.mark.parametrize("text", ["b=1,a,c=2", "a=", "  a "])
def test_a_setting_needs_a_value(names, text):
    with pytest.raises(ValueError, match=r"^The rendezvous configuration option 'a' must have a value specified.$"):
        names("rendezvous.utils")._parse_rendezvous_config(text)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("a-1.example:0", "a-1.example", 0),
        ("a.example:65535", "a.example", 65535),
        ("1.2.3.4", "1.2.3.4", 9),
        ("[2001:db8::1]:80", "2001:db8::1", 80),
        ("[2001:db8::1]", "2001:db8::1", 9),
        (" ", "localhost", 9),
        (None, "localhost", 9),
    ],
)
def test_endpoints(names, endpoint, host, port):
    assert names("rendezvous.utils").parse_rendezvous_endpoint(endpoint, default_port=9) == (host, port)


@pytest.mark.parametrize("endpoint", ["~", "a.example :1", "~:1", ":1"])
def test_an_endpoint_needs_a_host(names, endpoint):
    with pytest.raises(
        ValueError,
        match=f"^The hostname of the rendezvous endpoint '{endpoint}' must be a dot-separated list of labels, an IPv4",
    ):
        names("rendezvous.utils").parse_rendezvous_endpoint(endpoint, default_port=9)


@pytest.mark.parametrize("endpoint", ["a:", "a:b", "a:-1", "a:65536", "a:123456"])
def test_an_endpoints_port_is_a_port(names, endpoint):
    with pytest.raises(
        ValueError, match=f"^The port number of the rendezvous endpoint '{endpoint}' must be an integer between 0 and 65536.$"
    ):
        names("rendezvous.utils").parse_rendezvous_endpoint(endpoint, default_port=9)


def test_ports_are_digits(names):
    parse = names("rendezvous.utils")._try_parse_port
    assert parse("123") == 123 and [parse(text) for text in ("", " 1", "1 ", "abc", "123456")] == [None] * 5


def test_this_machine_knows_itself(names):
    matches = names("rendezvous.utils")._matches_machine_hostname
    own = [found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)]
    for host in (
        "localhost",
        "127.0.0.1",
        "::1",
        "0000:0000:0000:0000:0000:0000:0000:0001",
        socket.gethostname(),
        socket.getfqdn(),
        *own,
    ):
        assert matches(host), host
    for host in ("no-such-host.invalid", "0.0.0.0", "::2"):
        assert not matches(host), host


def test_another_name_of_one_of_our_addresses_is_this_machine(names):
    address_of = {"alias": "10.9.8.7", "stranger": "10.9.8.6", socket.gethostname(): "10.9.8.7"}

    def resolved(name, *_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, f"{name}.example.com", (address_of[name], 0))]

    matches = names("rendezvous.utils")._matches_machine_hostname
    with patch("socket.getaddrinfo", resolved):
        assert matches("alias") and not matches("stranger")


def test_a_timer_calls_until_it_is_cancelled(names):
    called = threading.Semaphore(0)
    timer = names("rendezvous.utils")._PeriodicTimer(timedelta(seconds=0.01), called.release)
    timer.set_name("tick")
    timer.start()
    assert all(called.acquire(timeout=60) for _ in range(3)) and timer.name == "tick"
    assert "tick" in {thread.name for thread in threading.enumerate()}
    timer.cancel()
    timer.cancel()
    assert "tick" not in {thread.name for thread in threading.enumerate()}


def test_a_timer_starts_once(names):
    timer = names("rendezvous.utils")._PeriodicTimer(timedelta(seconds=60), print)
    timer.start()
    for again in (timer.start, lambda: timer.set_name("late")):
        with pytest.raises(RuntimeError, match=r"^The timer has already started.$"):
            again()
    timer.cancel()


def test_a_forgotten_timer_stops(names):
    timer = names("rendezvous.utils")._PeriodicTimer(timedelta(seconds=60), print)
    timer.set_name("forgotten")
    timer.start()
    del timer
    gc.collect()
    assert "forgotten" not in {thread.name for thread in threading.enumerate()}


def test_a_timer_may_be_forgotten_by_the_last_call_that_it_makes(ours, monkeypatch, wait_until):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_value))
    kept = []
    timer = ours("rendezvous.utils")._PeriodicTimer(timedelta(seconds=0.01), kept.clear)
    timer.set_name("forgets itself")
    kept.append(timer)
    timer.start()
    del timer
    wait_until(lambda: "forgets itself" not in {thread.name for thread in threading.enumerate()})
    assert not ignored
