"""The path from a user's data to clients: sources, partitions, the federation, and how the data is distributed."""

from hansa.data.arrays import dataset_from_arrays
from hansa.data.dataset import Dataset, Partition, Samples, Source
from hansa.data.federation import Federation, build_federation, federation_from_clients
from hansa.data.split import TestSplit
from hansa.data.targets import Classes, Real, Target

__all__ = [
    "Classes",
    "Dataset",
    "Federation",
    "Partition",
    "Real",
    "Samples",
    "Source",
    "Target",
    "TestSplit",
    "build_federation",
    "dataset_from_arrays",
    "federation_from_clients",
]
