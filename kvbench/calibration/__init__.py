"""What a method knows of a model beforehand: its visual heads, found by reading pictures out."""
