"""The experiments of the paper's Section 6, and one with more irrelevant inputs: ``gptd-rl reproduce``.

`pendulum`, `gridworld` and `irrelevant_inputs` compute, one seed at a time, and return frozen records. `claims`,
`tables` and `figures` evaluate these records; `page` and `reproduce` write the results. The paper's own numbers are in
``paper.json``; all others are computed.
"""
