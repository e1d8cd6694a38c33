"""The arena's oracle: its policy in plain Python (`twin`), and both side by side (`pair`)."""
