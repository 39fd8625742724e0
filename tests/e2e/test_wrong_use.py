"""Is wrong use told before anything starts? More than a hundred slips, as users make them.

Of each: exit code 2 (or the one that stands behind it), nothing on stdout, one line that names what is wrong and its value, a
second one that says what to do, no traceback, no job, and no file.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli.run import folder_check

FILES = {
    "train.py": "print('it ran')",
    "empty": "",
    "notes.txt": "",
    "program": "echo no first line",
    "lost-shell": "#!/no/such/shell\n",
    "broken.yaml": "fault_tolerance: [1, {",
    "key.yaml": "fault_tolerance:\n  rank_heartbeat_timout: 3\n",
    "type.yaml": "fault_tolerance:\n  rank_heartbeat_timeout: soon\n",
    "garbage.pem": "garbage",
    "rules.toml": "[[rule]\n",
    "token": "0123456789abcdef0123456789abcdef\n",
}
MEET = "--nnodes 2 --rdzv-endpoint"
"""Of several nodes; what would start at such an endpoint is never reached."""

RUN = f"""
                                                    | no script to run | holdfast run [options] SCRIPT
trian.py                                            | the script trian.py is not there | did you mean train.py?
nowhere/train.py                                    | the script nowhere/train.py is not there | is its file system mounted
folder                                              | folder is a folder without a __main__.py | check the path
''                                                  | the script's name is empty | that variable is empty
python train.py                                     | the script python is not there | Then leave python out
--tee 3 3 train.py                                  | the script 3 is not there | did you mean train.py?
--stash-limit 64 GB train.py                        | the script GB is not there | did you mean train.py?
-m no_such_module                                   | there is no module no_such_module | check its name
-m trian                                            | there is no module trian | did you mean train?
-m email.mime.txt                                   | there is no module email.mime.txt | did you mean email.mime.text?
-m train.py                                         | there is no module train.py | without -m
--no-python no-such-program                         | no-such-program is in no directory of PATH | give its path
--no-python program                                 | the program program is in no directory of PATH | ./program
--no-python ./notes.txt                             | ./notes.txt is not there, or may not be executed | chmod +x
--no-python ./program                               | ./program does not say in its first line what runs it | #!/bin/sh
--no-python ./lost-shell                            | ./lost-shell names '/no/such/shell' in its first line | correct that line
--module --no-python train.py                       | a module needs Python | leave one of them out
--max-restrats 3 train.py                           | there is no flag --max-restrats | did you mean --max-restarts?
-nproc-per-node 2 train.py                          | there is no flag -nproc-per-node | did you mean --nproc-per-node?
-np 2 train.py                                      | there is no flag -np | did you mean --nproc-per-node?
--gpus 2 train.py                                   | there is no flag --gpus | did you mean --nproc-per-node?
--num-nodes 2 train.py                              | there is no flag --num-nodes | did you mean --nnodes?
--python /venv/bin/python train.py                  | there is no flag --python | set PYTHON_EXEC=/path/to/python
--nproc 2 train.py                                  | --nproc is too short | write --nproc-per-node
--nproc-per-node train.py                           | train.py is the value of --nproc-per-node | SCRIPT
--nproc-per-node 0 train.py                         | --nproc-per-node: 0 is too small | give 1 or more
--nproc-per-node -1 train.py                        | --nproc-per-node: -1 is too small | give 1 or more
--nproc-per-node two train.py                       | 'two' is neither a number nor a kind of device | auto, cpu, gpu
--nproc-per-node gpus train.py                      | 'gpus' is neither a number nor a kind of device | did you mean gpu?
--nproc-per-node 100000 train.py                    | 100000 is too large | give 10000 or less
--nnodes 4:2 train.py                               | --nnodes: 4:2 | did you mean 2:4?
--nnodes 0 train.py                                 | a job needs at least one node | give N, or MIN:MAX
--nnodes two train.py                               | 'two' is not a number of nodes | give N, or MIN:MAX
--max-restarts -1 train.py                          | --max-restarts: -1 is too small | give 0 or more
--max-restarts three train.py                       | 'three' is not a whole number | write it in digits
--restart-period 1h train.py                        | '1h' is not a number of seconds | without a unit: 3600
--lease 500ms train.py                              | '500ms' is not a number of seconds | without a unit: 0.5
--lease 0.001 train.py                              | --lease: 0.001 s is too short | give 0.1 seconds or more
--shutdown-timeout -5 train.py                      | --shutdown-timeout: -5 is negative | give seconds
--start-limit soon train.py                         | 'soon' is not a number of seconds | give seconds
--stash-limit 140% train.py                         | '140%' is not an amount of memory | a share such as 40%
--tee stdout train.py                               | 'stdout' names no streams | give 0 (none), 1 (stdout)
--monitor on train.py                               | --monitor: there is no 'on' | auto, off
--warm-spares many train.py                         | 'many' is neither a number, nor auto, nor off | such as 2
--progress-regex '(' train.py                       | '(' is not a regular expression | quote it
--on-finding foo=stop train.py                      | there is no class 'foo' | user-code
--signals-to-handle SIGTRM train.py                 | there is no signal SIGTRM | did you mean SIGTERM?
--logs-specs mine train.py                          | no entry point torchrun.logs_specs[mine] | default
--check-before gpuu train.py                        | there is no check 'gpuu' | did you mean gpu?
--quiet --verbose train.py                          | --quiet and --verbose exclude one another | leave one of them out
--standalone --nnodes 2 train.py                    | --standalone: one node | leave one of them out
--print-config=yaml train.py                        | --print-config takes no value | --help
--log-dir notes.txt train.py                        | --log-dir: TMP/notes.txt is a file | name a folder
--log-dir notes.txt/logs train.py                   | --log-dir: TMP/notes.txt/logs: TMP/notes.txt is a file | name a folder
--stash-dir notes.txt train.py                      | --stash-dir: TMP/notes.txt is a file | name a folder
--rdzv-backend c10 --rdzv-endpoint a:1 train.py     | there is no rendezvous backend 'c10' | did you mean c10d?
--rdzv-backend memory --nnodes 2 train.py           | memory is for one node | use c10d
--rdzv-backend etcd train.py                        | where is etcd? | --rdzv-endpoint HOST:2379
--rdzv-endpoint node0 train.py                      | 'node0' has no port | node0:29500
{MEET} node0: train.py                              | 'node0:' ends before the port | give HOST:PORT
{MEET} node0:99999 train.py                         | '99999' is not a port | from 0 to 65535
{MEET} :29400 train.py                              | ':29400' names no host | that variable is empty
{MEET} fe80::1:29400 train.py                       | 'fe80::1:29400' is not a host | [fe80::1]:29400
{MEET} node0:1:2 train.py                           | 'node0:1:2' is not a host | give HOST:PORT
{MEET} 10.0.0.256:1 train.py                        | '10.0.0.256' is not a host | give HOST:PORT
{MEET} http://node0:1 train.py                      | 'http://node0:1' is not a host | give HOST:PORT
{MEET} node0:0 train.py                             | port 0 | give one, such as node0:29400
{MEET} node0:1 --rdzv-conf join_timeout train.py    | 'join_timeout' is not KEY=VALUE | join_timeout=600
{MEET} node0:1 --rdzv-conf join_timeout=5min train.py | '5min' is not a number of seconds | without a unit: 300
{MEET} 127.0.0.1:1 --require-token train.py             | --require-token | holdfast token --write FILE
{MEET} node0:1 --witness notes.txt train.py         | --witness: TMP/notes.txt is not a directory | create it
{MEET} node0:1 --witness nowhere train.py           | --witness: TMP/nowhere is not a directory | create it
{MEET} node0:1 --tls-cert train.py train.py         | TLS needs --tls-ca too | give --tls-cert, --tls-key and --tls-ca
{MEET} 127.0.0.1:1 --tls-cert garbage.pem --tls-ca garbage.pem train.py | garbage.pem holds no certificate | PEM
--nnodes 2 --node-rank 2 --master-addr a train.py   | --node-rank: 2 is not below | 0 to 1
--nnodes 2 --node-rank one --master-addr a train.py | 'one' is not a whole number | in digits
--nnodes 2 --master-addr a --master-port 99999 train.py | 99999 is too large | 65535
--nnodes 2 --master-addr '' train.py                | --master-addr: where is the node of rank 0? | that variable is empty
--master-addr 'a b' --master-port 1 train.py        | 'a b' is not a host name | give a name
--nnodes 3 --rdzv-endpoint a:1 --segment 2 train.py | 3, is not a multiple of --ft-segment 2 | 2 or 4
--token-file nowhere train.py                       | --token-file: TMP/nowhere does not exist | holdfast token --write
--token-file folder train.py                        | --token-file: TMP/folder is a directory | folder/token
--token-file empty train.py                         | --token-file: TMP/empty is empty | holdfast token --write
--tls-cert nowhere --tls-ca nowhere train.py        | --tls-cert: TMP/nowhere does not exist | check its path
--supervisor node0:x train.py                       | --supervisor: 'x' is not a port | from 0 to 65535
--supervisor node0 --supervisor-token-file nowhere train.py | nowhere cannot be read | check its path
--ft-cfg-path nowhere.yaml train.py                 | nowhere.yaml cannot be read | --ft-ignore-missing-cfg
--ft-cfg-path broken.yaml train.py                  | broken.yaml is not valid YAML | correct it
--ft-cfg-path key.yaml train.py                     | there is no fault_tolerance.rank_heartbeat_timout | did you mean rank_
--ft-cfg-path type.yaml train.py                    | rank_heartbeat_timeout (seconds, none or auto): 'soon' | give seconds
--ft-cycle-info-dir notes.txt train.py              | --ft-cycle-info-dir: TMP/notes.txt is a file | name a folder
--ft-nvrx-logfile folder train.py                   | --ft-nvrx-logfile: TMP/folder cannot be written | name a file
"""

OTHERS = """
rnu train.py                              | there is no command 'rnu' | did you mean run?
train.py                                  | there is no command 'train.py' | holdfast run train.py
--verison                                 | there is no command '--verison' | did you mean --version?
logs                                      | there is no command 'logs' | holdfast status JOB
ps                                        | there is no command 'ps' | holdfast jobs
help rnu                                  | there is no command 'rnu' | did you mean run?
status                                    | there are no jobs in TMP/state | HOLDFAST_STATE_DIR
why nosuch                                | there are no jobs in TMP/state | HOLDFAST_STATE_DIR
jobs --runing                             | there is no argument --runing | did you mean --running?
status a b                                | there is no argument b | holdfast status --help
report --svg                              | --svg needs a value | holdfast report --help
jobs --json=yes                           | --json takes no value | holdfast jobs --help
stop                                      | no JOB given | holdfast stop JOB
stop train --grace soon                   | --grace: 'soon' is not a number of seconds | give seconds
stop train --grace -1                     | --grace: -1 is negative | give seconds
force-leader train                        | no --lost given | holdfast force-leader JOB
inject kil n1                             | there is no fault 'kil' | kill
inject kill n1 --rank two                 | --rank: 'two' is not a whole number | in digits
inject hang n1 --for 5m                   | --for: '5m' is not a number of seconds | without a unit: 300
check gpuu                                | there is no check 'gpuu' | did you mean gpu?
check --deadline soon                     | --deadline: 'soon' is not a number of seconds | give seconds
check --root nowhere                      | there is no folder nowhere | mounted?
check --pairs                             | no rendezvous endpoint | --rdzv-endpoint HOST:PORT
check --pairs --nnodes 0 --rdzv-endpoint a:1 | a job needs at least one node | give N
check --pairs --rdzv-endpoint a:99999     | '99999' is not a port | from 0 to 65535
doctor --deadline -1                      | --deadline: -1 is not above zero | give seconds
diagnose nowhere.log                      | there is no file nowhere.log | check the path
diagnose --rules rules.toml notes.txt     | rules in rules.toml are not TOML | write-a-rule
diagnose --ask-model some notes.txt       | --ask-model: nobody is asked | give --ask URL
token --write notes.txt                   | notes.txt exists | --force
token --write nowhere/token               | cannot write nowhere/token | name a file
completion tcsh                           | shell: there is no 'tcsh' | bash, zsh, fish
health-service notes.txt                  | notes.txt: it exists and is no socket | another path
health-service nowhere/socket             | nowhere/socket: its folder does not exist | make it
attribution serve --root nowhere          | there is no directory nowhere | logs?
attribution serve --root . --port http    | --port: 'http' is not a port | from 0 to 65535
daemon --port 99999                       | --port: '99999' is not a port | from 0 to 65535
daemon --silence 0                        | --silence: 0 is not above zero | give seconds
daemon --host 10.0.0.1                    | 10.0.0.1 is not a loopback address | 127.0.0.1
daemon --state-dir notes.txt              | --state-dir: TMP/notes.txt cannot be used | name a folder
daemon --tls-cert nowhere                 | --tls-cert: only with --supervisor | leave them out
daemon --repair-with reboot=true          | --repair-with: only with --supervisor | leave them out
daemon --repair-check gpu                 | --repair-check: only with --supervisor | leave them out
supervisor --listen node0:99999           | --listen: '99999' is not a port | from 0 to 65535
supervisor --listen 0.0.0.0:1             | anybody who reaches 0.0.0.0:1 could speak | holdfast token --write
supervisor --lease soon                   | --lease: 'soon' is not a number of seconds | give seconds
supervisor --policy googel                | there is no policy 'googel' | did you mean google?
supervisor --orchestrator slrm            | there is no 'slrm' | slurm
supervisor --replace-with "'cordon"       | --replace-with: 'cordon: No closing quotation | close the quotation
supervisor --replace-with nosuch          | there is no program nosuch | PATH
supervisor --state notes.txt              | --state: TMP/notes.txt cannot be used | name a folder
supervisor --store etc://a:1/x            | 'etc://a:1/x' is no store | etcd://
supervisor --tls-cert nowhere             | --tls-cert and --tls-ca are needed together | certificate
supervisor --token-file nowhere           | nowhere cannot be read | check its path
supervisor --webhook nowhere              | 'nowhere' is not http://host/path | whole address
supervisor --webhook-file nowhere         | --webhook-file: nowhere cannot be read | check its path
supervisor --otlp nowhere                 | 'nowhere' is not http://host:port | 4318
wrap                                      | there is no command to run | holdfast wrap
wrap --max-restarts x -- python train.py  | --max-restarts: 'x' is not a whole number | in digits
1 nodes                                   | no supervisor answers at TMP/state/supervisor | --state?
1 drain n1                                | no supervisor answers at TMP/state/supervisor | --state?
1 daemon --status                         | no daemon answers at TMP/state | holdfast daemon
"""

VARIABLES = """
PET_NNODES=two                            | PET_NNODES: 'two' is not a number of nodes | give N
PET_STANDALONE=yes                        | PET_STANDALONE: 'yes' is not a whole number | 1 switches it on
HOLDFAST_LEASE=3s                         | HOLDFAST_LEASE: '3s' is not a number of seconds | without a unit: 3
HOLDFAST_SUPERVISOR=node0:x               | HOLDFAST_SUPERVISOR: 'x' is not a port | from 0 to 65535
PYTHON_EXEC=nosuchpython                  | the interpreter nosuchpython is not there | PYTHON_EXEC
TORCH_ELASTIC_SHUTDOWN_TIMEOUT=30s        | 'TORCH_ELASTIC_SHUTDOWN_TIMEOUT: '30s' is not | without a unit: 30
TORCHELASTIC_HEALTH_CHECK_PORT=http       | 'http' is not a port | from 0 to 65535
"""


class Slip(NamedTuple):
    """One wrong use."""

    words: list[str]
    what: str
    hint: str
    code: int = 2
    variables: tuple[tuple[str, str], ...] = ()


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.rsplit(" | ", 2)] for line in table.splitlines() if line.strip()]


def slips() -> list[Slip]:
    found = [Slip(["run", *shlex.split(words)], what, hint) for words, what, hint in rows(RUN)]
    for words, what, hint in rows(OTHERS):
        code = 1 if words.startswith("1 ") else 2
        found.append(Slip(shlex.split(words.removeprefix("1 ")), what, hint, code))
    for variable, what, hint in rows(VARIABLES):
        found.append(Slip(["run", "train.py"], what.lstrip("'"), hint, 2, (tuple(variable.split("=", 1)),)))
    return found


SLIPS = slips()

PLAYER = """
import json, os, select, signal, sys, tempfile
from holdfast.cli.main import commands, main

commands()  # loads them
import holdfast.cli.run.run

def played(words, variables):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (pid := os.fork()):
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.environ.update(variables)
            code = main(words)
            sys.stdout.flush()
            os._exit(code)
        if not select.select([os.pidfd_open(pid)], [], [], 20)[0]:
            os.kill(pid, signal.SIGTERM)  # it has started after all
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, *(os.pread(file.fileno(), 10**6, 0).decode() for file in (out, err))

slips = json.load(sys.stdin)
print(json.dumps([played(*slip) for slip in slips]))
"""
"""Plays many, each in a child that has the modules already."""


def lay_out(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 if name in ("program", "lost-shell") else 0o600)
    (folder / "folder").mkdir()


def is_told(slip: Slip, code: int, out: str, err: str, folder: Path) -> None:
    what, hint = (text.replace("TMP", str(folder)) for text in (slip.what, slip.hint))
    lines = err.splitlines()
    assert (code, out, len(lines)) == (slip.code, "", 2), err
    assert lines[0].startswith("holdfast") and what in lines[0], err
    assert lines[1].startswith("  hint: ") and hint in lines[1], err


def test_more_than_a_hundred_slips_are_told_in_two_lines_and_leave_nothing(tmp_path: Path) -> None:
    """Each with what is wrong, its value and the mend; no stdout, no traceback, no job, no file."""
    lay_out(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "SLURM_"))}
    env["HOLDFAST_STATE_DIR"] = str(tmp_path / "state")
    told = subprocess.run(
        [sys.executable, "-c", PLAYER],
        input=json.dumps([(slip.words, slip.variables) for slip in SLIPS]),
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    for slip, (code, out, err) in zip(SLIPS, json.loads(told.stdout), strict=True):
        is_told(slip, code, out, err, tmp_path)
    assert len(SLIPS) > 150 and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("slip", SLIPS[1::25], ids=lambda slip: " ".join(slip.words))
def test_so_is_each_by_the_command_itself(holdfast, tmp_path: Path, slip: Slip) -> None:
    """A few of them as a user types them, since the others are played in one process."""
    lay_out(tmp_path)
    done = holdfast(*slip.words, cwd=tmp_path, env=dict(slip.variables))
    is_told(slip, done.returncode, done.stdout, done.stderr, tmp_path)
    assert not holdfast.state_dir.exists()


@pytest.mark.root
@pytest.mark.parametrize("flag", ["--log-dir", "--stash-dir"])
def test_a_folder_of_another_user_s_is_told_before_anything_starts(tmp_path: Path, flag: str) -> None:
    """Of whoever may not write there; root may everywhere."""
    lay_out(tmp_path)
    (tmp_path / "state").mkdir()
    for path in (tmp_path, tmp_path / "state", tmp_path / "train.py"):
        os.chown(path, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", f"{AS_NOBODY}; sys.exit(main(['run', '{flag}', '/root/mine', 'train.py']))"],
        cwd=tmp_path, env={**os.environ, "HOLDFAST_STATE_DIR": "state"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    is_told(Slip([], f"{flag}: /root/mine: /root may not be written to by this user", "name a folder"),
            done.returncode, done.stdout, done.stderr, tmp_path)  # fmt: skip
    assert not list((tmp_path / "state").iterdir())


AS_NOBODY = (
    "import os, sys; from holdfast.cli.main import main; import holdfast.cli.run.run; os.setgid(65534); os.setuid(65534)"
)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("HOLDFAST_MAX_RESTARTS", "PET_MAX_RESTARTS"),
        ("PET_MAX_RESTART", "PET_MAX_RESTARTS"),
        ("HOLDFAST_LEESE", "HOLDFAST_LEASE"),
    ],
)
def test_a_variable_that_nothing_reads_is_told_and_the_job_runs(holdfast, script, variable: str, meant: str) -> None:
    """It may be another program's."""
    done = holdfast("run", script("print('it ran')"), env={variable: "3"})
    said = f"holdfast: WARNING: nothing reads {variable} (did you mean {meant}?)\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "it ran\n", said)


def test_a_launcher_s_flag_behind_the_script_is_told_and_the_script_gets_it(holdfast, script) -> None:
    """As with torchrun, it is the script's; which is hardly what was meant."""
    path = script("import sys; print(sys.argv[1:])")
    done = holdfast("run", path, "--nproc-per-node", "2")
    assert done.stdout == "['--nproc-per-node', '2']\n" and "--nproc-per-node stands behind the script" in done.stderr


def test_a_folder_whose_file_system_does_not_say_is_left_to_the_agent_and_a_link_to_nowhere_is_not(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert folder_check._trouble("--log-dir", str(tmp_path / ("x" * 300) / "logs")) == ""
    assert "link is a file, not a folder" in folder_check._trouble("--log-dir", str(tmp_path / "link"))
