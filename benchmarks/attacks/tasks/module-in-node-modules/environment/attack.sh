#!/bin/sh
mkdir -p /app/node_modules
echo 'exports.run = () => {};' > /app/node_modules/tally.js
