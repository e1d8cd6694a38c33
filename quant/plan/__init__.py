"""Budget and importance to a codec and a width for every slot."""
