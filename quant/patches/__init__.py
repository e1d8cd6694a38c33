"""The few functions of torch that DAF stands in front of while a session is open."""
