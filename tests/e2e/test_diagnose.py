"""A job fails: what is kept of it, what it is said to mean, and what that changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kit.hosts.checked_host import CheckedHost

MISSING = "import a_module_that_nobody_has"
ONE_TYPO = "import os, time\nif os.environ['RANK'] == '1': print(undefined_name)\nwhile True: time.sleep(0.05)"
TWO_RANKS = ("run", "--nproc-per-node", "2", "--node-name", "n1")


def test_what_came_again_right_after_a_restart_is_not_tried_a_third_time(holdfast: Any, script: Any) -> None:
    done = holdfast(*TWO_RANKS, "--max-restarts", "3", script(ONE_TYPO))
    reason = holdfast.events("Decided")[-1]["reason"]
    assert done.returncode == 93 and "the script uses a name that is not there" in reason and "came again" in reason
    assert len(holdfast.events("RoundFormed")) == 2


def test_a_flag_has_it_tried_as_often_as_there_are_restarts(holdfast: Any, script: Any) -> None:
    done = holdfast(*TWO_RANKS, "--max-restarts", "2", "--on-finding", "none", script(MISSING))
    assert done.returncode == 1 and len(holdfast.events("RoundFormed")) == 3


def test_a_flag_that_is_wrong_starts_nothing(holdfast: Any, script: Any) -> None:
    done = holdfast(*TWO_RANKS, "--on-finding", "usercode=stop", script(MISSING))
    assert done.returncode == 2 and "did you mean user-code" in done.stderr and holdfast.jobs() == []


def test_an_incident_is_kept_shown_and_understood(holdfast: Any, script: Any) -> None:
    assert holdfast(*TWO_RANKS, script(ONE_TYPO)).returncode == 1
    kept = holdfast.jobs()[-1] / "incidents" / "round-1" / "n1"
    assert "MemTotal" in (kept / "memory.txt").read_text() and (kept / "kernel.txt").exists()
    shown = holdfast("incidents").stdout
    assert "rank 1 on n1: the script uses a name that is not there" in shown and str(kept.parent) in shown
    ended = {rank: json.loads((kept / f"failure-rank-{rank}.json").read_text()) for rank in (0, 1)}
    assert (ended[0]["cause"], ended[1]["cause"], ended[0]["exitcode"]) == ("stopped", "exception", -15), "with the signal"
    assert sorted(kept.parent.parent.iterdir()) == [kept.parent], "one folder for all of it"
    for what in ((), [kept.parent]):  # the job's own record; and the folder alone, as it may be handed to somebody else
        found = json.loads(holdfast("diagnose", "--json", *what).stdout)
        assert (found["class"], found["rank"], found["node"], found["rule"]) == ("user-code", 1, "n1", "python-name")


LOOKS_AWAY = """
import os, signal, time
def wait_for_the_other():
    open(f"{os.environ['SEEN']}/{os.environ['RANK']}", "w").close()
    while True:
        time.sleep(0.01)
if os.environ["RANK"] == "2":
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(2) or os._exit(0))  # longer than a busy agent takes to ask
if os.environ["RANK"] != "3":
    wait_for_the_other()
while len(os.listdir(os.environ["SEEN"])) < 3:
    time.sleep(0.01)
os._exit(3)
"""


def test_a_rank_that_fails_leaves_where_all_others_were_on_every_node(
    holdfast: Any, script: Any, free_port: int, tmp_path: Path
) -> None:
    (tmp_path / "seen").mkdir()
    common = ("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-backend", "c10d")
    start = lambda n: holdfast.start(
        "run", *common, "--node-rank", n, "--node-name", f"n{n}", script(LOOKS_AWAY), env={"SEEN": str(tmp_path / "seen")}
    )
    agents = [start(n) for n in range(2)]
    assert [agent.wait().returncode for agent in agents] == [1, 1]
    (kept,) = (holdfast.jobs()[-1] / "incidents").iterdir()
    shown = {file.name: file.read_text() for file in kept.glob("n?/rank-*.txt")}
    # Rank 2 handles the signal itself, so it is asked. Where both signals reach it at once it answers before its handler runs.
    assert sorted(shown) == ["rank-0.txt", "rank-1.txt", "rank-2.txt"], "of all but the one that is gone"
    assert all("in wait_for_the_other" in text for text in shown.values())
    found = json.loads(holdfast("diagnose", "--json").stdout)
    assert found["rule"] != "stack-outlier" and found["rank"] in (3, None), "who was elsewhere is not what they waited for"


WAITS = """
import os, time
open(f"{os.environ['SEEN']}/rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", "w").close()
while not os.path.exists(f"{os.environ['SEEN']}/end"):
    time.sleep(0.01)
"""


def test_a_round_that_ended_for_a_node_that_came_is_no_incident(
    holdfast: Any, script: Any, free_port: int, tmp_path: Path, wait_until: Any
) -> None:
    common = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-backend", "c10d")
    conf = ("--rdzv-conf", "last_call_timeout=0.1")
    agents = []
    for name, ranks in (("a", ["rank 0 of 1"]), ("b", ["rank 0 of 2", "rank 1 of 2"])):
        agents.append(holdfast.start("run", *common, *conf, "--node-name", name, script(WAITS), env={"SEEN": str(tmp_path)}))
        wait_until(lambda ranks=ranks: all((tmp_path / rank).exists() for rank in ranks), what=" and ".join(ranks))
    (tmp_path / "end").touch()
    assert [agent.wait().returncode for agent in agents] == [0, 0], agents[0].output
    assert any("b joined" in event["reason"] for event in holdfast.events("Decided"))
    assert not (holdfast.jobs()[-1] / "incidents").exists()


def test_the_report_says_the_cause_and_what_to_do_above_the_box(holdfast: Any, script: Any) -> None:
    done = holdfast(*TWO_RANKS, "--failure-box", script(ONE_TYPO))
    said = " ".join(done.stderr.split())
    cause = "rank 1 on n1: the script uses a name that is not there; fix the script at the line that its traceback names"
    assert f"Cause {cause} (user-code, 95% sure)" in said
    assert said.index(cause) < said.index("First failure") < said.index("Root Cause (first observed failure)")
    assert done.stderr.rstrip().endswith("=" * 60), "programs look for the box at the very end"


def test_the_cause_stands_in_the_report_on_disk_and_is_shown_afterwards(holdfast: Any, script: Any) -> None:
    holdfast(*TWO_RANKS, script(ONE_TYPO))
    cause = json.loads((holdfast.jobs()[-1] / "report.json").read_text())["cause"]
    assert (cause["kind"], cause["rank"], cause["node"], cause["rule"]) == ("user-code", 1, "n1", "python-name")
    (said,) = cause["from"]
    shown = holdfast("report").stdout
    assert f"cause: {cause['sentence']} (user-code, 95% sure)\n  by {said['source']}: {said['text']}\n" in shown
    assert "NameError" in said["text"]


def test_an_error_that_the_script_logged_and_lived_through_is_not_the_cause(holdfast: Any, script: Any) -> None:
    path = script("""
import logging, os
try:
    raise OSError("image file is truncated (3 bytes not processed)")
except OSError:
    logging.exception("sample 12 is skipped")
raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
""")
    done = holdfast(*TWO_RANKS, "--redirects", 2, path)
    cause = json.loads((holdfast.jobs()[-1] / "report.json").read_text())["cause"]
    assert done.returncode == 1 and cause["kind"] == "oom-gpu", cause


def test_what_no_rule_knows_is_given_no_cause(holdfast: Any, script: Any) -> None:
    done = holdfast(*TWO_RANKS, script("import sys; sys.exit(3)"))
    assert done.returncode == 1 and "First failure" in done.stderr and "Cause\n" not in done.stderr
    assert json.loads((holdfast.jobs()[-1] / "report.json").read_text())["cause"] is None
    assert "cause:" not in holdfast("report").stdout


@pytest.mark.parametrize("why", ["the disk does not answer", "wrong.toml are not TOML"])
def test_rules_that_cannot_be_read_hold_up_nothing_and_cost_only_themselves(holdfast: Any, script: Any, why: str) -> None:
    (holdfast.state_dir / "rules").mkdir(parents=True)
    if "disk" in why:
        os.mkfifo(holdfast.state_dir / "rules" / "hangs.toml")  # whoever opens it waits for ever
    else:
        (holdfast.state_dir / "rules" / "wrong.toml").write_text("[[rule]\n")
    done = holdfast(*TWO_RANKS, "--max-restarts", 1, script(ONE_TYPO))
    said = " ".join(done.stderr.split())
    assert done.returncode == 1 and "your own rules are not used: " in said and why in said
    assert "the script uses a name that is not there" in said


def test_what_checks_say_of_the_node_is_kept_with_its_failure(holdfast: Any, script: Any, tmp_path: Path) -> None:
    host = CheckedHost(tmp_path / "host")
    checks = ("--check-before", "memory,command=echo a fan is slow; exit 3")
    assert holdfast(*TWO_RANKS, *checks, script(ONE_TYPO), env={"HOLDFAST_CHECK_ROOT": str(host.root)}).returncode == 1
    kept = json.loads((holdfast.jobs()[-1] / "incidents" / "round-1" / "n1" / "health.json").read_text())
    failed = {one["check"]: one["state"] for one in kept if one["when"] == "failed"}
    assert failed == {"memory": "fit", "command=echo a fan is slow; exit 3": "degraded"}
    assert "health of n1 when it failed: command=echo a fan is slow; exit 3: degraded: exit code 3: a fan is slow" in (
        holdfast("incidents").stdout
    )
    (incident,) = json.loads(holdfast("incidents", "--json").stdout)
    assert {one["check"] for one in incident["health"]["n1"]} == set(failed)


def test_rules_of_the_user_s_are_found_in_the_state_directory(holdfast: Any, tmp_path: Path) -> None:
    (holdfast.state_dir / "rules").mkdir(parents=True)
    rule = 'name="lic"\nclass="framework"\nwords=["license server"]\npattern="no license server"\nsays="it has no license"\n'
    rule += 'advice="call us"\nsample="E: no license server"\n'
    (holdfast.state_dir / "rules" / "ours.toml").write_text(f"[[rule]]\n{rule}")
    (tmp_path / "job.log").write_text("[rank3]: E: no license server here\n")
    said = holdfast("diagnose", tmp_path / "job.log").stdout
    assert said.startswith("rank 3: it has no license; call us")


@pytest.mark.torch
def test_real_flight_recorders_name_the_rank_that_never_came(holdfast: Any, script: Any, tmp_path: Path) -> None:
    """torch's own record, of gloo, from ranks of which one leaves a collective out."""
    program = script(
        "import os, time, torch, torch.distributed as dist\n"
        "from torch._C import _distributed_c10d as c10d\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "dist.all_reduce(torch.ones(4))\n"
        "if rank != 1: work = dist.all_reduce(torch.ones(8), async_op=True)\n"
        f"open(f'{tmp_path}/trace_rank_{{rank}}', 'wb').write(c10d._dump_fr_trace())\n"
        f"while not os.path.exists('{tmp_path}/trace_rank_0'): time.sleep(0.01)\n"  # the other one's call needs its peer
        "os._exit(0)\n"
    )
    holdfast("run", "--nproc-per-node", "2", program, env={"TORCH_FR_BUFFER_SIZE": "2000"})
    (tmp_path / "records").mkdir()
    for record in tmp_path.glob("trace_rank_*"):
        record.rename(tmp_path / "records" / record.name)
    found = json.loads(holdfast("diagnose", "--json", tmp_path / "records").stdout)
    assert found["rank"] == 1 and "never reached all_reduce [[8]]" in found["sentence"], found
