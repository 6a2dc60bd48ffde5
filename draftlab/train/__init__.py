"""Train a drafter on a store.

Random anchors, the target's own tokens as labels, hard cross-entropy.
"""
