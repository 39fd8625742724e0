"""The elastic agent: the process that runs one node's workers. `torch.distributed.elastic.agent` under our name."""
