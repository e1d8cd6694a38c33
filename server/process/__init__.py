"""The sidecar as a process: started beside a run, found by all."""
