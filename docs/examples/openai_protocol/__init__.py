"""OpenAI's protocol: its schema, its connections, its texts, its answers, and the server made of them."""
