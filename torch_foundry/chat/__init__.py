"""A chat with a model: what is said and measured (conversation), commands, and the terminal (app, widgets)."""
