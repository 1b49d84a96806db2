"""An HTTP server over one engine: OpenAI's and Anthropic's protocols (`torch-foundry serve`).

gate (limits, keys, logs) > app (routes) > a module for each protocol > service (prompts, answers) > engine_thread
"""
