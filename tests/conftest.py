"""What holds for every test: one thread a process, nothing from the network, bounded searches."""

import os

# Before torch is imported; processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# A loaded machine is slow, not wrong: no deadlines. CI repeats the same cases at every run.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
