"""What every part of the package may use; imports nothing of it."""
