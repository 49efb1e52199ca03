"""A training checkpoint becomes a Hub folder: weights, code, tokenizer, SentenceTransformer files, card."""
