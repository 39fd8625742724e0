"""NVRx's `checkpointing` by its own names, as far as local checkpoints go: see `holdfast.checkpointing.local`."""
