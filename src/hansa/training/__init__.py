"""What a client does between receiving and uploading: the one loop, its objectives and gradients."""
