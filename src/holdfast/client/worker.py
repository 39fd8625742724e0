"""Who writes for this process? One writer for all of `holdfast.client`: that of the bootstrap which started this worker."""

from __future__ import annotations

import sys

from holdfast.core.page import layout as _layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.writer import Writer  # the bootstrap's writer is used where there is one

__all__ = ["this_worker"]


def _find_writer() -> Writer:
    """That of the bootstrap, if its page is laid out as we know it; else one without a page."""
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    if bootstrap is not None and getattr(bootstrap.layout, "VERSION", None) == _layout.VERSION:
        found: Writer = bootstrap.writer()
        return found
    from holdfast.client.writer import Writer  # the bootstrap's writer is used where there is one

    return Writer()


this_worker = _find_writer()
"""What this process tells its agent with."""
