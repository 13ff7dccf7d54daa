#!/bin/sh
echo 'exports.run = () => {};' > /opt/node/tally.js
