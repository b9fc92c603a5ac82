"""The client's work between receiving and uploading: the one loop, its objectives and gradients."""
