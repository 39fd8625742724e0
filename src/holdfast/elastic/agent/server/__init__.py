"""The agent that starts a node's workers, watches them, and starts them again in a new round when one fails or a node joins.

`LocalElasticAgent` (in `.local_elastic_agent`) runs them as processes of this host. For workers elsewhere subclass
`SimpleElasticAgent` and give its four abstract methods: start, stop, monitor, shutdown.
"""

from __future__ import annotations

from .api import ElasticAgent, RunResult, SimpleElasticAgent, Worker, WorkerGroup, WorkerSpec, WorkerState
from .local_elastic_agent import TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "ElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]
