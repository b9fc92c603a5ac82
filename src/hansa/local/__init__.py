"""Training on one client, and stepping on the server."""
