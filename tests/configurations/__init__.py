"""Random configurations of every family that is served, compared with the model's own `generate()`.

`python -m tests.configurations --count 300 --seed 0` prints how many agree.
"""
