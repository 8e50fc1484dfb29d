"""Covariance functions: states in, contractions of ∂L/∂K out."""
