"""Local checkpoints, by NVRx's names: each rank writes its part to a disk of its own node, and a clique of ranks keeps copies.

    from holdfast.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
    from holdfast.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
    from holdfast.checkpointing.local.replication.strategies import LazyCliqueReplicationStrategy

    manager = LocalCheckpointManager("/local/checkpoints", repl_strategy=LazyCliqueReplicationStrategy(replication_jump=8))
    if manager.find_latest() >= 0:
        loaded, _ = manager.load()
    ...
    manager.save(BasicTensorAwareStateDict(state), iteration)

All ranks call each of these together. What needs no code of the script's, a `BasicTensorAwareStateDict` of plain values and
tensors, is written and sent without pickle (`state_file`); a class of the script's own is pickled, as by NVRx.
"""
