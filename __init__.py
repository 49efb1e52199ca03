"""CaptionBERT: compact sentence encoders trained on unlabelled text by teacher consensus.

This file imports nothing: an eager import would load a second copy of the model beside the remote-code one.
Import the piece you need, e.g. ``from captionbert.modeling_captionbert import CaptionBertModel``.
"""
