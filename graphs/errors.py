"""The errors a user can cause while a model is being opened or built.

All derive from ValueError, carry the names a user needs (file, tensor, key, value), and make the
CLI exit with code 2. Violations of our own invariants are assertions and never appear here.
"""


class ConfigError(ValueError):
    """config.json says something this runtime cannot run; the message names key and value."""


class CheckpointError(ValueError):
    """The files do not hold the checkpoint that config.json describes; the message names them."""


class ArtifactError(ValueError):
    """An artifact that cannot be used here; the message says what differs and what to run."""


class DiskError(ValueError):
    """A folder takes no more; the message names it and says what to do."""
