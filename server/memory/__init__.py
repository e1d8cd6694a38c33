"""Memory taken apart: by Python line at the peak (the allocation profile) and by module of the model."""

from daf.server.memory.modules import module_tree, read_modules, table
from daf.server.memory.notes import read_notes
from daf.server.memory.profile import answer_of, read_profile

__all__ = ["answer_of", "module_tree", "read_modules", "read_notes", "read_profile", "table"]
