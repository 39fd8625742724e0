"""The elastic agent: the process of one node that runs that node's workers. `torch.distributed.elastic.agent` under our name."""
