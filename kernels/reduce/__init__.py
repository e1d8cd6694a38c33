"""Reductions over whole tensors, and which way of doing one is fastest here."""
