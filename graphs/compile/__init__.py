"""Engine compilers: from a block and its arguments' shapes to a program that runs it."""
