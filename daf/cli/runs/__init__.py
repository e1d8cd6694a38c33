"""The commands that look at runs and steer them. Each parses; what is shown is rendered in `daf.cli.render`."""
