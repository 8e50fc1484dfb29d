"""Reports of results: records, plots, HTML pages, terminal text."""
