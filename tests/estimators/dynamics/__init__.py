"""Tests of the dynamics model."""
