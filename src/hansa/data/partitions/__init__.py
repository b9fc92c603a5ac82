"""Ways to divide samples among clients.  All of them end, and none loses or repeats a sample unless it says so."""
