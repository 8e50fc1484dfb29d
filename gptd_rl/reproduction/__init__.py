"""The experiments of the paper's Section 6, and some beyond it: what ``gptd-rl reproduce`` runs.

`pendulum`, `gridworld` and `beyond` compute, one seed at a time, and return frozen records; `claims`, `tables` and
`figures` say what came out; `page` and `reproduce` write it down. The paper's own numbers are in ``paper.json``, and
nothing else is copied from anywhere.
"""
