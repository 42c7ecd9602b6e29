"""Imports for processes that are forked for a run of bench: one short text makes all of them.

Such a process imports the program's main module too.
"""

from typing import Any

import torch

import draftwood.apps.bench.command
import draftwood.apps.bench.measure
import draftwood.apps.terminal.progress  # noqa: F401
import tests.soak.__main__  # noqa: F401
from draftwood import create, zoo

# No pool of threads would survive a fork; OMP_NUM_THREADS says so, as torch.set_num_threads() makes one.
_pair: list[Any] = [zoo.load(name) for name in ("llama-7m", "llama-draft")]
_decoder = create("recipes", "leviathan").decoder(*_pair)
_ids = zoo.tokenizer()("Once", return_tensors="pt").input_ids
_decoder.generate(_ids, max_new_tokens=2)
_pair[0].generate(_ids, max_new_tokens=2, attention_mask=torch.ones_like(_ids))
