"""The stats page: what an arena tells, in shared memory, and its reader."""
