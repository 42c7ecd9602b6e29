"""What holds for every test: one thread a process, nothing from the network, bounded searches."""

import os

# Before torch is imported; processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from draftwood_pytest import register_profiles
from hypothesis import settings

torch.set_num_threads(1)

# CI repeats the same cases at every run; `--draftwood-profile thorough` tries ten times as many.
register_profiles()
settings.load_profile("draftwood-ci" if os.environ.get("CI") else "draftwood-default")
