"""Which writer does this process have? One for all of `holdfast.client`: the one of the bootstrap that started this worker."""

from __future__ import annotations

import sys

from holdfast.core.page import layout as _layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.writer import Writer  # the bootstrap's writer is used where there is one

__all__ = ["this_worker"]


def _find_writer() -> Writer:
    """The bootstrap's, if its page has our version; else one without a page."""
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    if bootstrap is not None and getattr(getattr(bootstrap, "layout", None), "VERSION", None) == _layout.VERSION:
        found: Writer = bootstrap.writer()
        return found
    from holdfast.client.writer import Writer  # the bootstrap's writer is used where there is one

    return Writer()


this_worker = _find_writer()  # What this process tells its agent with.
