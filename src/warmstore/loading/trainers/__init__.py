"""What torch's DataLoader and trainers take instead of a loader."""
