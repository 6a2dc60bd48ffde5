"""The whole pipeline on the bundled pair: no download, no GPU, under a minute."""
