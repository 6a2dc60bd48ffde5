"""Replay.

Draft every anchor of every reference completion, and walk the rounds without a target.
"""
