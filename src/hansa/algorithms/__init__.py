"""One file an algorithm, named as its paper names it."""
