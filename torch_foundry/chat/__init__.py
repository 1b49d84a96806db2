"""A chat with a model: what is said and measured (conversation), and commands."""
