#!/bin/sh
exec office-check check.py
