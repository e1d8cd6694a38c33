"""From a tensor to planes in the arena: which codec, on which backend, packed by whom."""
