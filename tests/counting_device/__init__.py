"""A stand-in for a CUDA device, which counts what decoding asks of it.

`counting_device()` makes `"cuda"` work on a CPU: with real numbers, with CUDA's refusals, and with every launch,
wait and copy counted by phase and line. `count_rounds(Call(...))` decodes on it with models of the zoo.
`python -m tests.counting_device` prints the counts of a round.

What differs from a GPU: an operation of torch counts one kernel where CUDA may run several, and some that torch
puts together below Python too; memory is not watched, so that a kernel may read what nobody copied; `"cuda:0"` is
the only device, `torch.cuda.is_available()` stays False, and there are no streams, events, graphs or generators;
`torch.tensor` takes no list of its tensors; a tensor cannot change its shape in place.
"""
