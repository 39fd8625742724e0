"""A torch Store over etcd: its names. Using one says what to use instead."""

from __future__ import annotations

import random
import time
from typing import Any

from ._etcd_missing import refuse


def cas_delay() -> None:
    """A short random pause before a lost compare-and-set is tried again."""
    time.sleep(random.uniform(0, 0.1))


class EtcdStore:
    """The store."""

    def __init__(self, etcd_client: Any, etcd_store_prefix: str, timeout: Any = None) -> None:
        refuse("EtcdStore")
