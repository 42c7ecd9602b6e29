"""What answers research questions, on texts, trees and exact laws."""
