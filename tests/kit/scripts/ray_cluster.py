"""A Ray cluster on this host: a head without CPUs and COUNT nodes of one, until stdin ends.

    ray_cluster.py COUNT FOLDER

It prints its address. A line on stdin, the start of a node's id, ends that node as a lost host does; then it prints `lost`.
"""

from __future__ import annotations

import os
import sys

from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}

if __name__ == "__main__":
    os.mkdir(folder := os.path.join(sys.argv[2], "ray"))  # where Ray leaves its address, too, if RAY_TMPDIR is that FOLDER
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": folder, **SMALL})
    nodes = [cluster.add_node(num_cpus=1, temp_dir=folder, **SMALL) for _ in range(int(sys.argv[1]))]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        (node,) = (node for node in nodes if node.node_id.startswith(line.strip()))
        cluster.remove_node(node, allow_graceful=False)
        print("lost", flush=True)
    cluster.shutdown()
