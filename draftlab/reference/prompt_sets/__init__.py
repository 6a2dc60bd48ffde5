"""Prompts of our own: six domains, 32 prompts each, one JSONL file a domain.

    chat          advice, explanations and plans, as people ask for them
    code          writing, mending, reviewing and explaining, in some twenty languages
    maths         from school to first university year, proofs included
    writing       stories, letters, poems and speeches
    agent         conversations with tools: a system prompt that lists them, a call, its result
    multilingual  all of these in 17 languages other than English

Written for draftlab and under its licence. They are in no benchmark and no training set that is
known; a drafter that was trained on them says so with a higher τ here than on the benchmarks.
"""

DOMAINS = ("chat", "code", "maths", "writing", "agent", "multilingual")
"""In the order in which they are asked; each is a file beside this one."""
