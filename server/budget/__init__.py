"""Changing budgets: what a change would take away, and carrying it out."""
