"""Starting a job from Python: `torch.distributed.launcher` under our name.

from holdfast.elastic.launcher import LaunchConfig, elastic_launch

config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
values = elastic_launch(config, train)(0.1, 32)      # {rank: what train(0.1, 32) returned}
"""

from __future__ import annotations

from .api import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]
