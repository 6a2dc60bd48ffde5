"""Draft trees: which prefixes a node budget buys, and how far the reference follows them."""
