"""A model of the dynamics: Gaussian processes of (x, a) → x', r, terminated.

`model` is what users hold. It consists of an `output` for each state variable and the reward, the `terminations` and
the `walls`; `outcomes` are what it says, `simulation` runs episodes in it.
"""
