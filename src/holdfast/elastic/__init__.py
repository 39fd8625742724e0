"""torch elastic's names over Holdfast: change `torch.distributed.elastic` to `holdfast.elastic`, and nothing else.

The submodules are torch's, with its signatures. `holdfast.elastic.launcher` and `holdfast.elastic.run` stand for
`torch.distributed.launcher` and `torch.distributed.run`. torch itself is loaded only by what cannot do without it (a c10d
store, the sampler, the worker's control plane), and only when that is used.
"""
