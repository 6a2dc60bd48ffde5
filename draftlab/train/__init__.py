"""Train a drafter on a store: random anchors, the target's own tokens as labels, hard cross-entropy."""
