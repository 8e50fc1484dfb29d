"""Choosing θ: objectives, search, thinning, variants."""
