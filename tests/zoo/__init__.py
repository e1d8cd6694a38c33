"""A zoo of small models and losses, one file a family: each is trained plain and under DAF, and must come out alike.

`python -m tests.zoo` trains them all and writes `docs/zoo.md`; `test_zoo.py` is the quick part.
"""
