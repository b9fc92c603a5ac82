"""Flower's own FedAvg, as its documentation shows it, on the data of the sites of `benchmarks/deployment.py`."""
