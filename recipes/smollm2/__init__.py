"""A drafter for SmolLM2-135M-Instruct, trained on what the model itself says."""
