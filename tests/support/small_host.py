"""A small host with something of each kind that sandboxes on this machine must see, or must not."""

from __future__ import annotations

from pathlib import Path

SECRET = "the answer is 42"

PUBLIC = {
    "usr/bin/tool": "program",
    "usr/lib/os-release": "ID=debian\n",
    "usr/share/ca-certificates/ca.crt": "ca",
    "usr/local/bin/tool": "program",
    "usr/local/share/ca-certificates/own.crt": "ca",
    "opt/app/bin/run": "program",
    "etc/ssl/certs/ca-certificates.crt": "ca",
    "etc/ssl/certs/public.key": "ca",
    "etc/apt/sources.list": "deb https://deb.example.org/debian bookworm main\n",
    "etc/apt/keyrings/vendor.key": "public",
    "etc/pip.conf": "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n",
    "etc/default/useradd": "# PASSWORD=x\nSHELL=/bin/sh\n",
    "etc/nsswitch.conf": "passwd: files\n",
    "var/lib/dpkg/status": "Package: tool\n",
    "var/lib/apt/extended_states": "x",
    "var/lib/ucf/hashfile": "x",
    "var/cache/apt/pkgcache.bin": "x",
}

SECRETS = (
    *("home/jane/.ssh/id_ed25519", "root/.aws/credentials", "srv/data", "mnt/disk/data", "media/stick/data"),
    *("boot/config", "run/docker.sock.d/x", "tmp/x", "var/tmp/x", "projects/task/solution/solve.sh", "snap/x"),
    *("var/log/syslog", "var/spool/mail/jane", "var/backups/shadow.bak", "var/mail/jane", "var/www/html/index.php"),
    *("var/lib/docker/volumes/x", "var/lib/postgresql/15/data", "var/lib/private/x", "var/cache/private/x"),
    *("var/cache/debconf/passwords.dat", "var/local/x", "var/opt/x"),
    *(
        "etc/ssh/ssh_host_ed25519_key",
        "etc/ssl/private/site.pem",
        "etc/letsencrypt/live/key.pem",
        "etc/docker/key.json",
    ),
    *("etc/kubernetes/admin.conf", "etc/cloud/cloud.cfg", "etc/sudoers", "etc/sudoers.d/jane", "etc/shadow-"),
    *("etc/NetworkManager/system-connections/home.nmconnection", "etc/wireguard/wg0.conf", "etc/krb5.keytab"),
    *("etc/fstab", "etc/crypttab", "etc/cron.d/backup", "etc/cron.daily/backup", "etc/systemd/system/app.service"),
    *("etc/app/credentials.json", "etc/app/tls.key", "etc/app/.env", "etc/apt/auth.conf.d/private.conf"),
    *("opt/app/.env", "usr/local/share/app/.ssh/id_rsa", "opt/jane/notes"),
)

WITH_PASSWORDS = {
    "etc/npmrc": "//registry.example.org/:_authToken=abc\n",
    "etc/apt/sources.list.d/private.list": "deb https://jane:pw@deb.example.org/ x main\n",
    "etc/profile.d/keys.sh": "export MODEL_API_KEY='sk-1'\n",
    "etc/default/app": "  DB_PASSWORD = hunter2\n",
}

PASSWD = """\
root:x:0:0:Jane Doe:/root:/usr/bin/fish
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
jane:x:1000:1000:Jane Doe:/opt/jane:/bin/bash
guest:x:1001:1001::/usr/bin:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
+nisuser::::::
"""
GROUP = "root:x:0:\nshadow:x:42:\nsudo:x:27:jane,daemon\njane:x:1000:\nnogroup:x:65534:\n"
OVERRIDES = "root jane 4750 /usr/bin/x\nroot shadow 2755 /usr/bin/chage\n#7 #8 0755 /usr/bin/y\n"


def small_host(root: Path) -> Path:
    """Lay it out in a directory."""
    for name, text in (PUBLIC | WITH_PASSWORDS | dict.fromkeys(SECRETS, SECRET)).items():
        put(root / name, text)
    for name, text in {
        "passwd": PASSWD,
        "group": GROUP,
        "shadow": "root:$y$hash:1::::::\n",
        "hosts": "1.2.3.4 db\n",
    }.items():
        put(root / "etc" / name, text)
    for name, text in {
        "environment": f"KEY={SECRET}\n",
        "machine-id": "0123456789abcdef\n",
        "subuid": "jane:1:2\n",
    }.items():
        put(root / "etc" / name, text)
    put(root / "var/lib/dpkg/statoverride", OVERRIDES)
    for name in ("etc/app/closed.conf", "opt/app/closed.conf", "usr/local/etc/closed.conf"):
        put(root / name, SECRET).chmod(0o640)
    put(root / "etc/closed/inside", SECRET).parent.chmod(0o751)
    put(root / "opt/closed/inside", SECRET).parent.chmod(0o754)
    (root / "etc/apt").chmod(0o750 | 0o005)
    (root / "bin").symlink_to("usr/bin")
    (root / "data").symlink_to("srv")
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").mkdir()
    return root


def put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file
