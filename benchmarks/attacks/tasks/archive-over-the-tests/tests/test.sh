#!/bin/bash
cd /tests
python3 -c 'import tarfile; tarfile.open("/app/report.tar").extractall("/tests/report")'
diff report/answer.txt expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
