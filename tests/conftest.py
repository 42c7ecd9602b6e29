"""What holds for every test: one thread a process, nothing from the network, bounded searches, no kernels.

The tests of kernels switch them on. Where no GPU is, Triton's interpreter runs them, which it must be told
before it is imported.
"""

import os

# Before torch is imported; processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["DRAFTWOOD_KERNELS"] = "off"

import torch
from draftwood_pytest import register_profiles
from hypothesis import settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# CI repeats the same cases at every run; `--draftwood-profile thorough` tries ten times as many.
register_profiles()
settings.load_profile("draftwood-ci" if os.environ.get("CI") else "draftwood-default")
