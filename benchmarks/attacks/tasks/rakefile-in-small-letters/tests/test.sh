#!/bin/bash
cd /app
rake test TESTS=/tests/test_calc.rb
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
