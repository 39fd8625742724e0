"""One Holdfast agent on each of several nodes of a Ray cluster, and one for each spare.

    python ray_agents.py --nodes 2 --spares 1 --max-restarts 3 train.py --checkpoint /shared/checkpoint.pt

What follows the flags below goes to `holdfast run`. Ray finds the nodes, and a new one when one is lost; ranks, rounds and
failures are Holdfast's. The script, and what it reads and writes, must be found under the same path on every node.
"""

import argparse
import os
import secrets
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def address() -> str:
    return ray.util.get_node_ip_address()


@ray.remote(max_retries=-1)  # whenever its node is lost: the next one has a new agent, which waits as a spare
def agent(folder: str, token: str, words: list[str]) -> int:
    name = f"{socket.gethostname()}-{ray.get_runtime_context().get_node_id()[:6]}"
    command = [sys.executable, "-m", "holdfast", "run", "--node-name", name, *words]
    env = os.environ | {"HOLDFAST_TOKEN": token}
    return subprocess.run(command, cwd=folder, env=env).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--nodes", type=int, required=True, help="on which ranks run")
    parser.add_argument("--spares", type=int, default=0, help="nodes that wait until one of them is lost")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of each node that Ray counts as taken")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node: Ray hides all others from the ranks")
    parser.add_argument("--port", type=int, default=29400, help="where the agents meet, on the first node")
    options, words = parser.parse_known_args()

    ray.init()  # RAY_ADDRESS says which cluster; without one, that of this host
    count, need = options.nodes + options.spares, {"num_cpus": options.cpus, "num_gpus": options.gpus}
    bundle = {"CPU": options.cpus, "GPU": options.gpus}
    places = placement_group([bundle] * count, strategy="STRICT_SPREAD")  # each on a node of its own
    print(f"waiting for {count} nodes with {options.cpus} CPUs and {options.gpus} GPUs each", flush=True)
    ray.get(places.ready())
    at = [PlacementGroupSchedulingStrategy(places, number) for number in range(count)]
    host = ray.get(address.options(scheduling_strategy=at[0], num_cpus=options.cpus).remote())
    words = ["--nnodes", str(options.nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{options.port}", *words]
    task = os.getcwd(), os.environ.get("HOLDFAST_TOKEN") or secrets.token_hex(), words
    runs = [agent.options(scheduling_strategy=place, **need).remote(*task) for place in at]
    ray.wait(runs)  # the first that ends knows the job's end; one whose node is lost may never come
    ended, _ = ray.wait(runs, num_returns=options.nodes, timeout=30)
    return max(ray.get(ended))


if __name__ == "__main__":
    sys.exit(main())
