"""The containers that sessions work in: made, filled, described, emptied of results, deleted."""
