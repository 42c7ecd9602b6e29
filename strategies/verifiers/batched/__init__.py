"""Rows of a round judged together: the kernels, and what brings trees and targets where they are judged."""
