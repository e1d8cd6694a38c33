"""torch.compile: Dynamo stays out of DAF's hooks, and what compiled graphs save is compressed. Start at pair.py."""
