"""torch asks a remote service whether a feature is on. Here every feature is on; replace the function to change that."""

from __future__ import annotations

HEALTH_CHECK_BEFORE_RENDEZVOUS = "ai_infra/pytorch_distributed:torchelastic_enable_healthcheck_before_rendezvous"
"""Whether the health check server answers before the first rendezvous, and goes on answering through restarts."""


def justknobs_check(name: str, default: bool = True) -> bool:
    """Whether the feature `name` is on."""
    return True
