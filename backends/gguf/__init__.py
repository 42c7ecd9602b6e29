"""Models in GGUF files, which llama.cpp runs."""
