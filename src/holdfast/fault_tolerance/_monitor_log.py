"""Where does a standalone server log? On stderr for people, on stdout for programs that follow layered restarts."""

from __future__ import annotations

import logging
import os
import socket
import sys


class RankMonitorLogger(logging.Logger):
    """On stderr, each line with the rank that is connected; lines about layered restarts go to stdout, if they are wanted."""

    def __init__(
        self,
        name: str = "RankMonServer",
        level: int = logging.INFO,
        connected_rank: int | None = None,
        is_restarter_logger: bool = False,
    ) -> None:
        super().__init__(name, level)
        self.is_restarter_logger = is_restarter_logger
        self.addHandler(logging.StreamHandler(sys.stderr))
        self.restarter_logger = logging.Logger(f"{name}.Restarter")
        followed = logging.StreamHandler(sys.stdout)
        followed.setFormatter(logging.Formatter("[%(asctime)s] [ALWAYS] [%(name)s] %(message)s"))
        self.restarter_logger.addHandler(followed)
        self.set_connected_rank(connected_rank)

    def set_connected_rank(self, rank: int | None) -> None:
        """From now on the lines are about this rank; None: about none."""
        who = f"{self.name}{os.getpid()}@{socket.gethostname()}:{'<none>' if rank is None else rank}"
        for handler in self.handlers:
            handler.setFormatter(logging.Formatter(f"[%(asctime)s] [%(levelname)s] [{who}] %(message)s"))

    def log_for_restarter(self, message: str) -> None:
        """A line for a program that follows layered restarts."""
        self.restarter_logger.debug(message)

    def log_restarter_event(self, message: str) -> None:
        """The same, if they are wanted."""
        if self.is_restarter_logger:
            self.log_for_restarter(message)
