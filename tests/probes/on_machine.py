"""`holdfast ARGV` on a host whose sysfs is a made-up one: on_machine.py ROOT ARGV"""

from __future__ import annotations

import sys

from holdfast.__main__ import main
from holdfast.runtime import topology

root = sys.argv.pop(1)
read = topology.read
topology.read = lambda mode, environ: read(mode, environ, root)  # type: ignore[assignment]
sys.exit(main())
