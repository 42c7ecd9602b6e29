"""What holds for every test: one thread a process, nothing from the network."""

import os

# Before torch is imported; processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
