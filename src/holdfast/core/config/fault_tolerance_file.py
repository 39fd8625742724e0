"""What does the YAML file of --ft-cfg-path say? One more source of texts, below the command line and the variables.

Its mapping `fault_tolerance` is looked for depth first, in lists too. Its keys become settings that name the file as their
origin, so a wrong value is the same error wherever it stands.
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.draft import Draft, Setting
from holdfast.core.config.fault_tolerance import SECTION, section
from holdfast.core.config.flags import FLAGS, NVRX_FLAGS
from holdfast.core.errors import UsageError

BY_KEY = {key: option for option in (*NVRX_FLAGS, *FLAGS) for key in option.keys}
DESTS = {key: option.dest for key, option in BY_KEY.items()}  # YAML key → attribute name of its setting.
NULL_IS_NO_LIMIT = {option.dest for option in BY_KEY.values() if option.metavar.startswith("S|none")}
"""Settings for which YAML's null says something; for others it says nothing."""


def read_file(draft: Draft) -> None:
    """Take over what the file of --ft-cfg-path says and neither a flag nor a variable does. UsageError: it is of no use."""
    path = draft.text("ft_cfg_path")
    if not path:
        return
    ignore = "ft_ignore_missing_cfg"
    missing_is_fine = draft.given(ignore) and grammar.truth(draft.text(ignore), "--ft-ignore-missing-cfg")
    try:
        document = draft.host.read_yaml(grammar.absolute(path, draft.host.cwd))
    except OSError as error:
        if missing_is_fine and isinstance(error, FileNotFoundError):
            return
        hint = "--ft-ignore-missing-cfg goes on without it" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{draft.name('ft_cfg_path')}: {path} cannot be read: {error.strerror}", hint=hint) from error
    found = section(document)
    if found is None:
        if not missing_is_fine:
            draft.warn(f"{draft.name('ft_cfg_path')}: {path} has no mapping {SECTION}: the file has no effect")
        return
    for key, raw in found.items():
        _take(draft, path, str(key), raw)


def _take(draft: Draft, path: str, key: str, raw: object) -> None:
    origin = f"{path} {SECTION}.{key}"
    dest = DESTS.get(key)
    if dest is None:
        # ft_launcher reads past what it does not know. A slip of the pen would switch off what it was to switch on; but
        # a key that is like none of ours may be of a version to come.
        if meant := grammar.nearest(key, DESTS):
            raise UsageError(f"{path}: there is no {SECTION}.{key}", hint=f"did you mean {meant}?")
        return draft.warn(f"{path}: nothing reads {SECTION}.{key}")
    text = as_text(dest, raw)
    if text is not None and not draft.given(dest):
        draft.settings[dest] = Setting(value=text, origin=origin)
    return None


def as_text(dest: str, raw: object) -> str | None:
    """A value of the file as it would be typed. None: it says nothing, and the default holds."""
    if raw is None:
        return "none" if dest in NULL_IS_NO_LIMIT else None
    if isinstance(raw, bool):
        if dest == "monitor":  # YAML reads `off` as false
            return "auto" if raw else "off"
        return "true" if raw else "false"
    if isinstance(raw, dict):
        return ",".join(f"{name}:{'none' if limit is None else limit}" for name, limit in raw.items())
    if isinstance(raw, list):
        return ",".join(map(str, raw))
    return str(raw)
