"""A stand-in for a CUDA device, which counts what decoding asks of it.

`counting_device()` makes `"cuda"` work on a CPU: with real numbers, with CUDA's refusals, and with every
launch, wait and copy counted by phase and line. `count_rounds(Call(...))` decodes on it with models of the
zoo, and `python -m tests.counting_device` prints the counts of a round.

What differs from a GPU:

- An operation of torch is one kernel, where CUDA may run several (`sort`, `topk`, a convolution).
- Nothing runs later: a copy that does not block has arrived, and who reads it too early is not betrayed.
  Memory is one: a kernel that finds an address of the CPU in a table reads what is there.
- `cuda:0` is the only device, `torch.cuda.is_available()` is False; there are no streams, events, graphs or
generators.
- `torch.tensor` takes no list of tensors, and none changes its shape in place (`unsqueeze_`).
- Bounds are checked where CUDA would abort, and errors are worded by the CPU where it refuses the same.
"""
