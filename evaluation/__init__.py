"""Scores of an exported folder: STS through mteb, and geometry gauges. Imports no remote-code file."""
