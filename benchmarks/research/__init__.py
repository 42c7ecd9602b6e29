"""Answers to research questions, on texts, trees and exact laws."""
