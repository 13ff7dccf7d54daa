"""The command line, `bench`: a module for each verb or group of verbs. The rest of the package imports none of it."""
