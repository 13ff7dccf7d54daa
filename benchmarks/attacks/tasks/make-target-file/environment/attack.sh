#!/bin/sh
touch /app/check
