diff /root/answer.txt /tests/expected.txt
