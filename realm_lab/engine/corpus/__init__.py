"""Text in, records out: readers of the field's formats, cutting, tagging and the WordPiece vocabulary. No torch."""
