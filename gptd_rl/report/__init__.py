"""How results are shown: plots, HTML, terminal."""
