"""What the engine takes from mlx_vlm for embedders and rerankers; imported only where one is used.

mlx_vlm is pinned exactly: how a model is called, and that its vectors are pooled and scaled behind
`last_hidden_state`, is not promised by it.
"""

from . import upstream  # first: it keeps the process as it was while mlx_lm is imported

from mlx_vlm.embedding_loader import load_embedding_model  # isort: skip
from mlx_vlm.models.pooling import pool_by_config  # isort: skip
from mlx_vlm.reranker_loader import load_sequence_classification_model  # isort: skip

__all__ = ["load_embedding_model", "load_sequence_classification_model", "pool_by_config", "upstream"]
