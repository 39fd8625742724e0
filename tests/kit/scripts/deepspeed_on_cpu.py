"""A script of DeepSpeed's on CPUs: `deepspeed_on_cpu.py SCRIPT …`. Without its collectives in shared memory, which it would
compile for a minute; all else is its own."""

from __future__ import annotations

import runpy
import sys

import deepspeed.ops

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
script = next(word for word in sys.argv[1:] if word.endswith(".py"))
sys.argv = [script, *(word for word in sys.argv[1:] if word != script)]
runpy.run_path(script, run_name="__main__")
