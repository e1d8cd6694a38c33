"""`daf demo`: the same plain training script twice, without and with DAF."""
