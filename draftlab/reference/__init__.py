"""Reference completions: what the target itself says, token for token."""
