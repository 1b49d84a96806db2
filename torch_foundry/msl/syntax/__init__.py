"""Reading Metal source: includes, preprocessor, tokens, declarations, statements."""
