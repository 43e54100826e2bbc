"""The tools that the model may call, and what they give back; knows no model protocol."""
