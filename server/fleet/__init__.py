"""All DAF processes of this user: found, read, remembered."""
