"""Text in, text or embeddings out: tokenisers, samplers and the loop around a compiled graph."""
