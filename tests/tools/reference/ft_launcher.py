"""What does docs/reference/ft_launcher.md say? Made from the tables of flags."""

from __future__ import annotations

from holdfast.cli.run.help import worth_showing
from holdfast.core.config.flags import FLAGS, FT_LAUNCHER, NVRX_FLAGS
from holdfast.core.config.option import ACCEPTED, OURS, Option
from tools.reference.torchrun import cell

HEAD = """\
# Command line: `holdfast ft_launcher`, and fault tolerance's flags and file

<!-- Made from the tables of flags by `make reference`. Do not edit. -->

`holdfast ft_launcher` takes the command line of `ft_launcher` of NVIDIA's Resiliency Extension (NVRx), in every version up to
0.7. It is [`holdfast run`](torchrun.md) with other defaults. Both commands accept every flag on both pages. To migrate, and to
see what differs on purpose, read [come from ft_launcher](../how-to/from-ft-launcher.md).

    holdfast ft_launcher [options] SCRIPT [script's arguments]

## Defaults of `ft_launcher`

"""

SPELLINGS = """\

## Fault tolerance's flags

Each flag below sets one field. You may also write `--ft-rank-heartbeat-timeout` as `--ft-rank_heartbeat_timeout`,
`--ft_rank_heartbeat_timeout` or, as in the oldest versions, `--ft-param-rank_heartbeat_timeout`. Its key in the file is
`rank_heartbeat_timeout`. The tables list other names that a flag has had. A flag of type `true|false` without a value means
`true`. For a number that is no limit, `none`, `null` or an empty text means the default. `--print-config` shows every value as
`ft.NAME`, and its source.

*Accepted* means that Holdfast accepts the flag and needs to do nothing; `--verbose` says why.
"""

FILE = """\

## The file

`--ft-cfg-path FILE` names a YAML file. The mapping `fault_tolerance` may be anywhere in it, so you can use your training
framework's own file. Holdfast takes the first such mapping, depth first, and also looks in lists.

```yaml
trainer:
  callbacks:
  - fault_tolerance:
      rank_heartbeat_timeout: 600
      rank_section_timeouts: {step: 60, checkpointing: 1200}
      rank_out_of_section_timeout: null    # no limit
```

Flags and variables take precedence over the file. A wrong value is an error that names the file and the key. A misspelt key is
an error that names the nearest known key. Any other unknown key gives a warning. A file without such a mapping gives a warning,
and a missing file is an error; `--ft-ignore-missing-cfg` turns both off.
"""

VARIABLES = """\

## Other variables

| variable | effect |
|---|---|
| `NVRX_GPUS_PER_NUMA` | GPUs per NUMA node: `numactl` binds each worker to NUMA node `LOCAL_RANK // N` |
| `NVRX_DISABLE_RANK_MONITORS` | any value: `--monitor off` |
| `NVRX_LOG_DEBUG` | `1`: `--ft-log-level debug` |
| `NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE` | `1`: several agents may run on one node |
| `CROSS_SLURM_PROCID`, `SLURM_PROCID`, `GROUP_RANK`, … | order of the nodes: [more](torchrun.md#other-variables) |
| `NVRX_REPLACEMENT_GROUP_ID` | nodes with the same value are replaced together |
| `NVRX_CURRENT_CYCLE_INFO` | with `--ft-cycle-info-dir`: the workers get the path of the file about the current cycle |
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, _defaults(), SPELLINGS]
    groups = dict.fromkeys(row.group for row in NVRX_FLAGS)
    for group in groups:
        parts += [f"\n### {group[0].upper()}{group[1:]}\n\n", _table([row for row in NVRX_FLAGS if row.group == group])]
    parts += ["\n### Holdfast's own flags\n\n", _ours(), FILE, VARIABLES]
    return "".join(parts)


def _defaults() -> str:
    usual, rows = {flag.dest: flag for flag in (*FLAGS, *NVRX_FLAGS)}, ["| flag | `ft_launcher` | `run` |", "|---|---|---|"]
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
