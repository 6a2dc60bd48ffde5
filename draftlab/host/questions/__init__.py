"""Pairs: what the script asks (`NAME.sh`) and what its answer means (`NAME.py`, pure functions).

A parser takes a section of the answer and returns a fact. An answer that it cannot read raises
ValueError with a sentence; `answers.facts_of` makes that a fact that was not answered.
"""
