"""Draft trees compared with the engines that people run: the same weights and prompts, in turns."""
