"""What compiling one frame leaves, and how Dynamo is given it back."""
