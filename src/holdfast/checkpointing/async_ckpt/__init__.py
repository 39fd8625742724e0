"""NVRx's `async_ckpt` by its own name, as far as local checkpoints need it: `core`."""
