"""What autograd saved: handles in its place, the ledger of live bytes, slots, and where in the model a save happens."""
