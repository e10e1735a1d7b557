"""Second rewards, for what is new: a setting of an algorithm, `algo.bonus`."""
