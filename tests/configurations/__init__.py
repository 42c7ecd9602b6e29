"""Random configurations of every supported family, compared with the model's own `generate()`.

`python -m tests.configurations --count 300 --seed 0` prints how many agree.
"""
