"""The root of DAF's exceptions. A leaf: every folder may import it, it imports nothing."""


class DafError(Exception):
    """Anything DAF itself reports. Bad input is a ValueError; running out of memory is a DafOutOfMemory."""


class DafOutOfMemoryError(DafError, MemoryError):
    """A request did not fit the budget after everything droppable was dropped.

    Where torch is loaded, the front doors raise a subclass that is also torch's own OutOfMemoryError.
    """
