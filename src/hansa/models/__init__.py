"""Networks to train, each of two named groups of parameters: `features` and `head`."""
