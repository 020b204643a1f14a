"""What faces a user: today the command line."""
