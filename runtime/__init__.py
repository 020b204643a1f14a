"""What runs engines for requests: slots, blocks, sampling, stops, text. Knows no transport."""
