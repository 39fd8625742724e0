"""A driver like `cli`: whole jobs of many nodes in one process, in simulated time, with any fault at any moment.

What decides is real and unchanged (`agent.node.Node` with everything in it), and so are the parts that drive the monitor, the
checks and the warm spares; what they act on is `sim.world` and `sim.network`. Everything follows from a seed:
`holdfast simulate --seed N` repeats a run exactly.
"""
