"""Records that the engine, studies and the evidence share on disk, and how they are read and written."""
