"""Data: sources, tokenizers, packing and the resumable loader. NumPy and Grain only.

Grain is imported when a data set is opened, not before.
"""

from data.dataset import Dataset, DataStats, fingerprint_changes, open_data, open_splits
from data.documents import DataError
from data.open_tokenizer import open_tokenizer
from data.prefetch import BatchIterator, batches
from data.rows import Batch
from data.tokenizer import Tokenizer

__all__ = [
    "Batch",
    "BatchIterator",
    "DataError",
    "DataStats",
    "Dataset",
    "Tokenizer",
    "batches",
    "fingerprint_changes",
    "open_data",
    "open_splits",
    "open_tokenizer",
]
