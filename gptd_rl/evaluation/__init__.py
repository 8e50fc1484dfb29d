"""Evaluate a trained agent: collect, fit, check against fresh rollouts, and show it on one page."""
