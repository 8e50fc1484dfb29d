"""The posterior: exact, sparse and online."""
