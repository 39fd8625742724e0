"""`holdfast ARGV` on a host whose /sys, /dev and /proc/driver are made-up ones: on_machine.py ROOT ARGV"""

from __future__ import annotations

import sys

from holdfast.__main__ import main
from holdfast.runtime.hardware import gpus, topology

root = sys.argv.pop(1)
read, nvidia = topology.read, gpus.nvidia
topology.read = lambda mode, environ: read(mode, environ, root)  # type: ignore[assignment]
gpus.nvidia = lambda elsewhere="/": nvidia(root)
sys.exit(main())
