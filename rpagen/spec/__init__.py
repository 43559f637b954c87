"""What a variant is: its model, and how spec files become variants."""
