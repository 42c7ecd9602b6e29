"""Models in GGUF files, which llama.cpp runs; `make test-gguf` runs these."""
