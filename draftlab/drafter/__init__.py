"""The DFlash drafter: its config, its checkpoint, its attention rule, its forward pass."""
