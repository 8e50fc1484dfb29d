"""From rewards to values: the operator H and the targets y = FᵀV + ε."""
