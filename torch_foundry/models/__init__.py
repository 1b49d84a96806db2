"""What is known of transformers' models, and the one forward of a decoder layer."""
