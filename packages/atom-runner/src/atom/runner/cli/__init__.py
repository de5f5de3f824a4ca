"""The command line `atom-runner`: `app` and a file a verb. Torch loads only when a verb needs it."""
