"""What a target model is, read from its folder: facts from config.json, the ends from its tensors."""
