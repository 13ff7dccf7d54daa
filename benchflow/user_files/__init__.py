"""The reader of all files that users write: their text as data, that data as a model, and the problems of both."""
