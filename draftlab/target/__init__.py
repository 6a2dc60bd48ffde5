"""What a target model is, read from its folder.

Facts from config.json, the ends from its tensors.
"""
