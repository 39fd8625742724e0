"""The layers of `src/holdfast`, from the ground up. test_layering.py holds them, and docs/layers.svg is drawn from them."""

from __future__ import annotations

FLOORS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("runtime",),
    ("telemetry",),
    ("rendezvous", "monitor", "health", "diagnosis", "recovery"),
    ("agent",),
    ("supervisor", "elastic", "fault_tolerance", "ptl_resiliency", "google", "straggler", "checkpointing", "inprocess"),
    ("cli", "sim"),
)
ASIDE: dict[str, tuple[int, str]] = {
    "client": (0, "runs inside a rank, imports core only"),
    "integrations": (6, "loaded by name, imported by nobody"),
}
"""Folders with a rule of their own: the floor beside which each is drawn, and the rule."""
