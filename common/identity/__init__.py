"""Names of things by content, alike in every process: cache scopes, pictures, embeddings."""

from common.identity.images import embedding_key, image_id, image_id_of_rows
from common.identity.scope import cache_scope

__all__ = ["cache_scope", "embedding_key", "image_id", "image_id_of_rows"]
