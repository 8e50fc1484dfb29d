"""Known answers: dynamic programming and the values of given policies."""
