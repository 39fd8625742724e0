"""What does docs/reference/ft_launcher.md say? Made from the tables of flags."""

from __future__ import annotations

from holdfast.cli.run.help import worth_showing
from holdfast.core.config.flags import FLAGS, FT_LAUNCHER, NVRX_FLAGS, by_dest
from holdfast.core.config.option import ACCEPTED, OURS, Option
from tools.reference.torchrun import cell

HEAD = """\
# Command line: `holdfast ft_launcher`, and fault tolerance's flags and file

<!-- Made from the tables of flags by `make reference`. Do not edit. -->

`holdfast ft_launcher` takes the command line of `ft_launcher`, of NVIDIA's Resiliency Extension (NVRx), of every version up to
0.7. It is [`holdfast run`](torchrun.md) with other defaults; every flag on either page is valid with both commands. How to come
from there, and what is different on purpose: [come from ft_launcher](../how-to/from-ft-launcher.md).

    holdfast ft_launcher [options] SCRIPT [script's arguments]

## Defaults of `ft_launcher`

"""

SPELLINGS = """\

## Fault tolerance's flags

Each flag below is one field. `--ft-rank-heartbeat-timeout` may also be written `--ft-rank_heartbeat_timeout`,
`--ft_rank_heartbeat_timeout` or, as in the oldest versions, `--ft-param-rank_heartbeat_timeout`; its key in the file is
`rank_heartbeat_timeout`. Other names that a flag has had are listed. A flag that takes `true` or `false` may stand alone, which
is `true`. `--print-config` shows every value as `ft.NAME`, and where it came from.

*Accepted* means that nothing is left to do; `--verbose` says why.
"""

FILE = """\

## The file

`--ft-cfg-path FILE` names a YAML file. Its mapping `fault_tolerance` may be anywhere in it, so the file may be that of your
training framework: the first is taken, depth first, in lists too.

```yaml
trainer:
  callbacks:
  - fault_tolerance:
      rank_heartbeat_timeout: 600
      rank_section_timeouts: {step: 60, checkpointing: 1200}
      rank_out_of_section_timeout: null    # no limit
```

What a flag or a variable says goes before it. A wrong value is an error that names the file and the key. So is a key that is
nearly one of these, which names the nearest; any other unknown key is named in a warning. A file without such a mapping is told
in a warning, and a file that is not there is an error, unless `--ft-ignore-missing-cfg` is given.
"""

VARIABLES = """\

## Other variables

| variable | effect |
|---|---|
| `NVRX_GPUS_PER_NUMA` | GPUs of one NUMA node: each worker is bound to the node `LOCAL_RANK // N` by `numactl` |
| `NVRX_DISABLE_RANK_MONITORS` | any value: `--monitor off` |
| `NVRX_LOG_DEBUG` | `1`: `--ft-log-level debug` |
| `NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE` | `1`: several agents may run on one node |
| `CROSS_SLURM_PROCID`, `SLURM_PROCID`, `GROUP_RANK`, … | its place: [where it comes from](torchrun.md#other-variables) |
| `NVRX_REPLACEMENT_GROUP_ID` | nodes of one such group are replaced together |
| `NVRX_CURRENT_CYCLE_INFO` | given to the workers with `--ft-cycle-info-dir`: the file about the cycle that runs |
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _defaults(), SPELLINGS]
    groups = dict.fromkeys(row.group for row in NVRX_FLAGS)
    for group in groups:
        parts += [f"\n### {group[0].upper()}{group[1:]}\n\n", _table([row for row in NVRX_FLAGS if row.group == group])]
    parts += ["\n### Of Holdfast's own flags\n\n", _ours(), FILE, VARIABLES]
    return "".join(parts)


def _defaults() -> str:
    usual, rows = by_dest((*FLAGS, *NVRX_FLAGS)), ["| flag | `ft_launcher` | `run` |", "|---|---|---|"]
    for dest, default in FT_LAUNCHER.items():
        flag = usual[dest]
        rows.append(f"| `{flag.name}` | `{default}` | {f'`{flag.default}`' if flag.default else '`--shutdown-timeout`'} |")
    rows.append("| `--rdzv-endpoint` | `--master-addr` and `--master-port`; port 29500 | port 29400 |")
    rows.append("| `--rdzv-conf join_timeout` | 300 | 600 |")
    rows.append("| `--rdzv-conf last_call_timeout` | 1 | 30 |")
    return "\n".join(rows) + "\n"


def _table(rows: list[Option]) -> str:
    lines = ["| flag | meaning | default | |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(row: Option) -> str:
    flags = ", ".join(f"`{name}`" for name in worth_showing(row)) + f" {cell(row.metavar)}"
    meaning = row.help + (f" (one of {', '.join(row.choices)})" if row.choices else "")
    others = [key for key in row.keys if row.name[5:].replace("-", "_") != key]
    meaning += f". In the file: {', '.join(f'`{key}`' for key in row.keys)}" if others else ""
    meaning += f". Variable: `{row.env}`" if row.env else ""
    state = f"*accepted*: {row.said}" if row.state == ACCEPTED else ""
    return f"| {flags} | {cell(meaning)} | {_default(row)} | {cell(state)} |"


def _default(row: Option) -> str:
    value = row.usual
    if value in (None, (), {}):
        return "–"
    if row.kind == "signal":
        return "`SIGKILL`"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _ours() -> str:
    lines = ["| flag | meaning | key in the file |", "|---|---|---|"]
    for flag in FLAGS:
        if flag.group == OURS and flag.keys:
            lines.append(f"| `{flag.name}` {cell(flag.metavar)} | {cell(flag.help)} | `{flag.keys[0]}` |")
    return "\n".join(lines) + "\n"
