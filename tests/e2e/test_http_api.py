"""The supervisor by HTTP: every route over real agents, the live stream, and what the death of either process costs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.ports import ports

from holdfast.core.wire.fleet import Deed, JobKept
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.store import SqliteStore
from holdfast.supervisor.web import openapi
from holdfast.telemetry.record.reader import read
from holdfast.telemetry.report.timeline import timeline

# Not loaded here: a tenth of a second for each worker of pytest that collects this file.
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed: pip install {name}")
    for name in ("httpx", "jsonschema", "starlette")
]
DOCUMENT = openapi.document("test")
JOB = "several"

STEPS = """
import os, sys, time
from holdfast import client
for step in range(3):
    client.progress(step)
    time.sleep(0.05)
while not os.path.exists(sys.argv[1] + "/finish"):
    time.sleep(0.02)
"""
"""Three steps, and then a rank that waits."""


def shaped(name: str, value: Any) -> Any:
    """The value, which must be of that shape, to the last field."""
    import jsonschema

    whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)
    return value


class Web:
    """A client of the API, which looks at the shape of every answer."""

    def __init__(self, port: int, **how: Any) -> None:
        import httpx

        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, **how)

    def get(self, path: str, shape: str, **query: str) -> Any:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        if not shape.startswith("["):
            return shaped(shape, answer.json())
        return [shaped(shape[1:-1], row) for row in answer.json()]

    def begun(self, path: str, reason: str = "its fan is loud") -> str:
        """What was said to it; empty while the supervisor does not know yet who is there."""
        answer = self.client.post(path, json={"reason": reason})
        if answer.status_code == 409 and "has just started" in answer.text:
            return ""
        assert answer.status_code == 200, answer.text
        return str(shaped("Told", answer.json())["text"])

    def refused(self, method: str, path: str, **how: Any) -> int:
        answer = self.client.request(method, path, **how)
        shaped("Refusal", answer.json())
        return int(answer.status_code)

    def states(self) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.get("/api/fleet", "FleetShown")["nodes"]}

    def node(self, name: str) -> Any:
        return self.get(f"/api/nodes/{name}", "NodeStory")

    def job(self) -> Any:
        return self.get(f"/api/jobs/{JOB}", "JobStory")

    @contextlib.contextmanager
    def live(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """(event, value) of the stream as they come."""
        with self.client.stream("GET", "/api/live") as answer:
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
            yield events(answer.iter_lines())


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """What a browser's EventSource would make of them."""
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@pytest.fixture
def web_port() -> int:
    return ports(1)[0]


@pytest.fixture
def fleet(holdfast, job, tmp_path, wait_until) -> Iterator[Supervised]:
    yield Supervised(holdfast, job, f"127.0.0.1:{ports(1)[0]}", tmp_path, wait_until)


@pytest.fixture
def web(fleet, web_port) -> Web:
    """Of a supervisor that has been started."""
    return opened(fleet, web_port)


def opened(fleet: Supervised, port: int, *flags: str, **how: Any) -> Web:
    fleet.start("--http", f"127.0.0.1:{port}", *flags).wait_for_output("dashboard at")
    return Web(port, **how)


def serving(fleet: Supervised) -> int:
    """Pid of the web process."""
    children = f"/proc/{fleet.running.pid}/task/{fleet.running.pid}/children"
    return int(open(children).read().split()[0])


def ended(agents: list[Any]) -> list[int]:
    return [agent.wait().returncode for agent in agents]


# --- what is shown --------------------------------------------------------------------------------------------------------


def standing(told):
    """Its round, how many of its ranks run, as their nodes have said, and its state."""
    return told["round"], told["ranks"], told["state"]


def test_every_route_tells_of_a_job_and_has_the_shape_that_it_says(fleet, web):
    agents = fleet.agents("a", "b", "c", flags=("--domain", "rack-7"))
    fleet.wait_until(lambda: web.states() == {"a": "fit", "b": "fit", "c": "spare"})
    os.kill(fleet.job.rank(0, 0, 1)[0], signal.SIGKILL)
    pids = {fleet.job.rank(rank, 1, 2)[0] for rank in (0, 1)}
    story = fleet.wait_until(
        lambda: next((told for told in [web.job()] if told["deeds"] and standing(told) == (2, 2, "running")), None)
    )
    assert (story["nodes"], story["spares"], story["ranks"], story["outcome"]) == (["a", "b"], ["c"], 2, "")
    first, second = story["rounds"]
    assert "SIGKILL" in first["failure"]["what"] and first["ended_unix"] and first["why"] and second["ended_unix"] is None
    (brief,) = story["incidents"]
    incident = web.get(f"/api/jobs/{JOB}/incidents/{brief['id']}", "Incident")
    assert incident["cause"] == brief["cause"] and incident["decision"].startswith("restart") and incident["evidence"]
    assert story["goodput"]["seconds"] and 0 <= story["goodput"]["goodput"] <= 1
    node = web.node("a")
    (here,) = node["jobs"]
    assert (node["domain"], node["linked"], here["job"], here["ranks"][0]["pid"] in pids) == ("rack-7", True, JOB, True)
    assert node["history"][-1]["state"] == "fit" and node["reported_at_unix"] > story["rounds"][0]["began_unix"]
    (deed,) = web.get("/api/deeds", "[Deed]", job=JOB)
    assert web.get("/api/deeds", "[Deed]") == web.get("/api/deeds", "[Deed]", node=deed["node"]) == [deed]
    assert web.get("/healthz", "Told") and web.get("/openapi.json", "OpenAPI")["paths"].keys() == DOCUMENT["paths"].keys()
    assert 'holdfast_nodes{state="spare"} 1' in web.client.get("/metrics").text
    page = web.client.get("/")
    assert page.headers["content-type"].startswith("text/html") and "script-src" not in page.headers["content-security-policy"]
    fleet.job.finish()
    assert ended(agents) == [0, 0, 0]
    fleet.wait_until(lambda: web.job()["state"] == "ended")
    assert (web.job()["outcome"], web.job()["attempt"]) == ("succeeded", 1)
    again = json.loads(fleet.holdfast.run("report", JOB, "--goodput", "--json").stdout)  # from the files, in another process
    live = web.job()["goodput"]
    assert (live["seconds"], live["goodput"], live["published"]) == (again["worker_s"], again["goodput"], again["published"])


def test_restarts_are_counted_and_timed_and_outlive_the_supervisor(fleet, web_port, script):
    web = opened(fleet, web_port)
    steps = script(STEPS, "steps.py")
    where = ("--supervisor", fleet.where, "--node-name", "a", "--rdzv-id", JOB, "--max-restarts", "1")
    agent = fleet.holdfast.start("run", *where, steps, fleet.job.folder)
    ranks = lambda: [
        rank for node in web.get("/api/fleet", "FleetShown")["nodes"] for here in node["jobs"] for rank in here["ranks"]
    ]
    (rank,) = fleet.wait_until(lambda: [rank for rank in ranks() if rank["step"] == 2])
    fleet.wait_until(lambda: len(fleet.holdfast.events("RanksBegun")) == 1)
    os.kill(rank["pid"], signal.SIGKILL)

    def hours() -> Any:
        return [hour for hour in web.get("/api/history", "History")["hours"] if hour["train"]["counts"]]

    def series() -> list[str]:
        found = (
            'holdfast_incidents_total{cause="signal"}',
            "holdfast_detect_seconds_count",
            "holdfast_train_again_seconds_sum",
        )
        return [line for line in web.client.get("/metrics").text.splitlines() if line.startswith(found)]

    (hour,) = fleet.wait_until(hours)
    assert hour["incidents"] == {"signal": 1} and sum(hour["train"]["counts"]) == 1
    (path,) = fleet.holdfast.jobs()
    (measured,) = timeline(JOB, read(str(path))).restarts
    again_s = measured.phases["again"] or 0.0
    assert hour["train"]["sum_s"] == pytest.approx(measured.total_s - again_s, abs=1e-5), "as the job's own report has it"
    assert hour["detect"]["sum_s"] == pytest.approx(measured.phases["detect"], abs=1e-5)
    told = series()
    assert told[:2] == ['holdfast_incidents_total{cause="signal"} 1.0', "holdfast_detect_seconds_count 1.0"] and len(told) == 3
    assert 0 < next(job["trained"] for job in web.get("/api/fleet", "FleetShown")["jobs"]) < 1
    fleet.kill()
    web = opened(fleet, web_port)
    fleet.wait_until(lambda: web.states() == {"a": "fit"})
    assert (hours(), series()) == ([hour], told)
    fleet.job.finish()
    assert ended([agent]) == [0]


def test_the_stream_tells_of_a_drain_while_it_happens(fleet, web):
    agents = fleet.agents("a", "b", "c")
    fleet.wait_until(lambda: web.states() == {"a": "fit", "b": "fit", "c": "spare"})
    with web.live() as stream:
        name, whole = next(stream)
        assert name == "fleet" and [node["name"] for node in shaped("FleetShown", whole)["nodes"]] == ["a", "b", "c"]
        assert "b is draining" in fleet.wait_until(lambda: web.begun("/api/nodes/b/drain"))
        states, outcome, version = [], "", whole["version"]
        while not outcome or states[-1] != "unfit":
            name, change = next(stream)
            assert name == "change" and shaped("FleetChanged", change)["version"] > version
            version = change["version"]
            states += [node["state"] for node in change["nodes"] if node["name"] == "b"]
            outcome = outcome or next((deed["outcome"] for deed in change["deeds"]), "")
        assert states[0] == "draining" and outcome == "c has taken over in round 2"
    assert web.refused("POST", "/api/nodes/b/drain", json={}) == 409
    assert "b may be used again" in web.begun("/api/nodes/b/uncordon")
    fleet.wait_until(lambda: web.states()["b"] == "spare")
    fleet.job.finish()
    assert ended(agents) == [0, 0, 0]


def test_a_ranks_step_its_time_and_the_age_of_its_heartbeat_are_told(fleet, web, script):
    steps = script(STEPS, "steps.py")
    where = ("--supervisor", fleet.where, "--node-name", "a", "--rdzv-id", JOB)
    agent = fleet.holdfast.start("run", *where, steps, fleet.job.folder)

    def rank() -> Any:
        seen = [rank for here in web.node("a")["jobs"] for rank in here["ranks"]] if web.states() else []
        return next((one for one in seen if one["step"] == 2), None)

    seen = fleet.wait_until(rank)
    assert seen["step_s"] > 0 and seen["beat_age_s"] >= 0
    fleet.job.finish()
    assert ended([agent]) == [0]


FAILS = """
import os, sys, time
print("read shard 17", file=sys.stderr)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    def parse(line):
        return int(line)
    parse("thirty")
while not os.path.exists(sys.argv[1] + "/finish"):
    time.sleep(0.02)
"""
"""Rank 1 fails once, in a function of its own."""


def test_an_incident_has_the_failed_rank_s_traceback_its_class_and_its_log(fleet, web, script):
    where = ("--supervisor", fleet.where, "--node-name", "a", "--rdzv-id", JOB, "--nproc-per-node", "2", "--max-restarts", "1")
    agent = fleet.holdfast.start("run", *where, "--tee", "3", script(FAILS, "fails.py"), fleet.job.folder)
    known = fleet.wait_until(lambda: JOB in [job["name"] for job in web.get("/api/fleet", "FleetShown")["jobs"]])
    assert known
    (brief,) = fleet.wait_until(lambda: web.job()["incidents"])
    assert (brief["kind"], brief["rank"]) == ("user-code", 1) and 0.5 < brief["confidence"] <= 1
    here = f"/api/jobs/{JOB}/incidents/{brief['id']}"
    (error,) = web.get(here, "Incident")["errors"]
    assert (error["rank"], error["node"]) == (1, "a") and "invalid literal for int()" in error["what"]
    assert error["traceback"][0].startswith("Traceback") and "    return int(line)" in error["traceback"]
    log = web.client.get(f"{here}/logs/1")
    assert log.headers["content-type"] == "text/plain; charset=utf-8" and log.text.startswith("read shard 17\nTraceback")
    for other in ("0", "7", "-1", "1e0", "%C2%B9"):
        assert web.refused("GET", f"{here}/logs/{other}") == 404, "a rank that has not failed"
    fleet.job.finish()
    assert ended([agent]) == [0]


def test_answers_and_the_stream_are_compressed_for_clients_that_take_it(fleet, web):
    for asked, encoding in (("gzip", "gzip"), ("identity", None)):
        headers = {"Accept-Encoding": asked}
        answer = web.client.get("/openapi.json", headers=headers)
        assert (answer.headers.get("content-encoding"), answer.json()["openapi"]) == (encoding, DOCUMENT["openapi"])
        with web.client.stream("GET", "/api/live", headers=headers) as stream:
            assert stream.headers.get("content-encoding") == encoding
            assert next(events(stream.iter_lines()))[0] == "fleet", "told at once, and not when a buffer is full"


def test_a_quiet_fleet_is_told_from_a_stale_one(fleet, web):
    first = web.get("/api/fleet", "FleetShown")
    with web.live() as stream:
        name, whole = next(stream)
        assert (name, whole["version"]) == ("fleet", first["version"])
        name, beat = next(stream)
        assert name == "beat" and shaped("Beat", beat)["version"] == first["version"]
        assert beat["at_unix"] > whole["at_unix"] >= first["at_unix"]
    last = web.get("/api/fleet", "FleetShown")
    assert last["at_unix"] > beat["at_unix"]
    assert {**last, "at_unix": 0} == {**first, "at_unix": 0}, "nothing else has changed"


# --- what is wanted -------------------------------------------------------------------------------------------------------


def test_a_job_is_restarted_and_stopped_by_http_and_by_command(fleet, web, tmp_path):
    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: web.states() == {"a": "fit", "b": "fit"})
    assert web.refused("POST", "/api/jobs/nobody/restart", json={}) == 404
    fleet.wait_until(lambda: web.begun(f"/api/jobs/{JOB}/restart", "a new config"))
    fleet.job.rank(0, 1, 2), fleet.job.rank(1, 1, 2)
    deed = fleet.wait_until(lambda: next((deed for deed in web.job()["deeds"] if deed["outcome"]), None))
    assert (deed["trouble"], deed["act"], deed["reason"], deed["outcome"]) == (
        "operator",
        "restart",
        "a new config",
        "round 2 runs",
    )
    elsewhere = {"HOLDFAST_STATE_DIR": str(tmp_path / "elsewhere")}  # as on a host where the job has no folder
    told = fleet.holdfast.run("restart", JOB, "--state", fleet.state, env=elsewhere)
    assert told.returncode == 0 and f"job {JOB} was told to restart" in told.stdout
    fleet.job.rank(0, 2, 3), fleet.job.rank(1, 2, 3)
    assert "asked for a restart" in fleet.holdfast.run("restart", JOB).stdout
    fleet.job.rank(0, 3, 4), fleet.job.rank(1, 3, 4)
    told = fleet.holdfast.run("stop", JOB, "--supervisor", "--state", fleet.state, "--reason", "enough")
    assert told.returncode == 0 and f"job {JOB} was told to stop" in told.stdout
    assert ended(agents) == [1, 1]
    fleet.wait_until(lambda: "the job ended" in web.job()["deeds"][-1]["outcome"])
    assert fleet.holdfast.run("stop", JOB, "--supervisor", "--state", fleet.state).returncode == 1


def test_why_tells_of_a_job_that_only_the_supervisor_knows(fleet, web_port):
    store = SqliteStore(str(fleet.state))
    about = {"node": "", "job": "far", "trouble": "operator", "seen": "", "policy": "default"}
    deed = Deed(id="1-1", at_unix=1.0, act="restart", reason="why not", **about)
    store.keep([Keep(table="jobs", key="far", value=JobKept(name="far")), Keep(table="deeds", key="1-1", value=deed)])
    store.close()
    web = opened(fleet, web_port)
    shown = fleet.holdfast.run("why", "far", "--state", fleet.state)
    assert "restart of job far (policy default)" in shown.stdout and "why: why not" in shown.stdout, shown.output
    assert web.get("/api/jobs/far", "JobStory")["state"] == "silent" and web.refused("GET", "/api/jobs/far/incidents/1") == 404
    assert fleet.holdfast.run("why", "nowhere", "--state", fleet.state).returncode == 2


# --- what a death costs ---------------------------------------------------------------------------------------------------


def test_the_web_process_may_be_killed_at_any_time_and_comes_back(fleet, web):
    import httpx

    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: web.states() == {"a": "fit", "b": "fit"})
    known, pid = web.get("/api/fleet", "FleetShown"), serving(fleet)
    os.kill(pid, signal.SIGKILL)
    fleet.running.wait_for_output("the HTTP API is gone (it was ended by SIGKILL)")
    assert fleet.states() == {"a": "fit", "b": "fit"}, "the supervisor itself is not affected"

    def back() -> Any:
        with contextlib.suppress(httpx.TransportError):
            return web.get("/api/fleet", "FleetShown")

    again = fleet.wait_until(back)
    assert again["generation"] == known["generation"] and serving(fleet) != pid
    assert [len(deeds) for deeds in (known["deeds"], again["deeds"])] == [0, 0]
    fleet.job.finish()
    assert ended(agents) == [0, 0]


def test_when_the_supervisor_is_killed_its_web_process_ends_with_it(fleet, web, alive):
    pid = serving(fleet)
    assert pid in alive()
    fleet.kill()
    fleet.wait_until(lambda: pid not in alive())


def test_a_stream_survives_the_supervisor_and_tells_all_of_the_next(fleet, holdfast, web_port):
    served = holdfast.start("web", "--http", f"127.0.0.1:{web_port}", "--state", fleet.state)
    served.wait_for_output("dashboard at")
    web = Web(web_port)
    assert {web.refused("GET", path) for path in ("/healthz", "/api/fleet", "/api/live", "/metrics", "/api/deeds")} == {503}
    fleet.start()
    with web.live() as stream:
        name, first = next(stream)
        assert name == "fleet"
        fleet.kill()
        assert next(stream)[0] == "silent" and web.refused("GET", "/healthz") == 503
        fleet.start()
        name, second = next(stream)
        assert name == "fleet" and second["generation"] == first["generation"] + 1 and second["version"] > first["version"]


def test_without_its_libraries_a_supervisor_says_so_and_goes_on(fleet, web_port, tmp_path):
    (tmp_path / "lacks").mkdir()
    (tmp_path / "lacks" / "usercustomize.py").write_text("")
    (tmp_path / "lacks" / "sitecustomize.py").write_text("import sys\nsys.modules['starlette'] = None\n")
    listen = ("--listen", fleet.where, "--state", fleet.state, "--http", f"127.0.0.1:{web_port}")
    fleet.running = fleet.holdfast.start("supervisor", *listen, env={"PYTHONPATH": str(tmp_path / "lacks")})
    fleet.running.wait_for_output("listening at")
    assert "no HTTP API and no dashboard: starlette not installed (pip install 'holdfast[supervisor]')" in fleet.running.stderr
    assert fleet.nodes() == {}
