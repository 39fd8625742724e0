"""What does a script do to a module or an optimizer beside its state, and how is that undone before the next life?

A newcomer's is as `build()` made it. Who keeps its own would go on in the mode of the evaluation that was cut short, and with
each hook that `train` registers once more: without an error, with another loss.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Where a tensor has its hooks: a dict, or None before the first."""


def as_built(made: Any) -> Callable[[], None]:
    """What puts mode, `requires_grad` and hooks of a module back to what they are now, and an optimizer's hooks."""
    modules = list(made.modules()) if hasattr(made, "named_buffers") else []
    parameters = list(made.parameters()) if modules else []
    hooked = [*modules, *parameters, *([made] if hasattr(made, "param_groups") else [])]
    modes = [(one, one.training) for one in modules]
    needs = [(one, one.requires_grad) for one in parameters]
    hooks = {(id(one), name): dict(there) for one in hooked for name, there in _hooks(one)}

    def put_back() -> None:
        for module, mode in modes:
            vars(module).update(training=mode)
        for parameter, is_needed in needs:
            parameter.requires_grad_(is_needed)
        for one in hooked:
            for name, there in _hooks(one):
                if (before := hooks.get((id(one), name), {})) != there:
                    there.clear()
                    there.update(before)

    return put_back


def _hooks(one: Any) -> Iterator[tuple[str, dict[int, Any]]]:
    """The hooks that `one` has, by the name of the field."""
    fields = {**getattr(one, "__dict__", {}), **{name: getattr(one, name, None) for name in OF_TENSORS}}
    for name, there in fields.items():
        if name.startswith("_") and "_hooks" in name and isinstance(there, dict):
            yield name, there
