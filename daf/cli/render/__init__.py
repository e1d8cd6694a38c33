"""What the commands show: tables and lines, the screen of `daf top`, the summary at the end of a run."""
