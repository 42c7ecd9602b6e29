"""OpenAI's protocol in five parts: its schema, its connections, its texts, its answers, and the server of them."""
