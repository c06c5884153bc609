# Tests under the launcher.
