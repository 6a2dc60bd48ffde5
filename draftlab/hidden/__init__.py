"""Hidden states of the target over its own completions: captured once, read by every drafter."""
