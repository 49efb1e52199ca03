"""The base room: files that are whole or absent, their digests, and errors a user can act on. Imports no other room."""
