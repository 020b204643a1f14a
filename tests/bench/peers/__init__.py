"""Other programs on the same model: what they need, how they are run, what they measure."""
