"""Pictures of a run, made from its files."""
