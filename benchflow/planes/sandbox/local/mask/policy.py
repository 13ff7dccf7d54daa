"""The policy of the mask, as data: the files of the host that sandboxes see.

Paths are relative to the root; `*` does not match `/`. The top level, /var, /var/lib and /var/cache have lists of
allowed names, because anything may lie there. /etc has lists of hidden ones, because programs need most of it: hidden
is what others may not read, and the names below.
"""

from __future__ import annotations

import re
from fnmatch import translate

VERSION = 1
"""Version of the whole policy. A layer that was built under another version is invalid."""


def make_matcher(*patterns: str) -> re.Pattern[str]:
    """Return an expression that matches a whole name or path by any of the patterns."""
    return re.compile("|".join(translate(pattern).replace(".*", "[^/]*") for pattern in patterns))


TOP = make_matcher(
    *("usr", "etc", "var", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"),
    *("bin.usr-is-merged", "sbin.usr-is-merged", "lib.usr-is-merged", "lib64.usr-is-merged"),
)
"""Names that are seen at the top level."""
VAR = frozenset({"cache", "lib", "tmp", "run", "lock", "log", "spool", "backups", "mail", "local", "opt"})
"""Names that are seen in /var."""
VAR_CACHE = make_matcher(
    *("apt", "debconf", "ldconfig", "man", "fontconfig", "dictionaries-common", "adduser", "dnf", "libdnf5", "yum"),
    *("pacman", "apk"),
)
"""Names that are seen in /var/cache."""
VAR_LIB = make_matcher(
    *("dpkg", "apt", "aptitude", "rpm", "rpm-state", "dnf", "yum", "pacman", "apk", "alternatives", "ucf", "pam"),
    *("python*", "misc", "shells.state", "binfmts", "dictionaries-common", "emacsen-common", "sgml-base", "xml-core"),
    *("man-db", "doc-base", "ca-certificates-java", "ghostscript", "xfonts", "xkb", "texmf", "tex-common", "locales"),
    *("aspell", "ispell", "gems", "vim", "ieee-data", "command-not-found"),
)
"""Names that are seen in /var/lib."""

EMPTY = {
    **dict.fromkeys(("proc", "sys", "dev", "run", "home", "srv", "mnt", "media", "boot"), 0o755),
    "tmp": 0o1777,
    "root": 0o700,
    "var/tmp": 0o1777,
}
"""Directories that always exist, with these modes, owned by root and empty."""

EMPTIED = (
    *(f"var/{name}" for name in ("log", "spool", "backups", "mail", "local", "opt")),
    *(f"etc/cron.{name}" for name in ("d", "hourly", "daily", "weekly", "monthly", "yearly")),
    *("etc/ssl/private", "etc/pki/tls/private", "etc/systemd"),
)
"""Directories that exist, empty, if the host has them, with the host's modes and owners."""

HIDDEN = (
    # accounts, rights and the machine's identity
    *("etc/passwd-", "etc/shadow-", "etc/group-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "etc/.pwd.lock"),
    *("etc/sudoers", "etc/sudoers.d", "etc/sudo-ldap.conf", "etc/doas.conf", "etc/security/opasswd"),
    *("etc/environment.d", "etc/krb5.keytab", "etc/krb5kdc", "etc/sssd", "etc/ldap.secret", "etc/pam_ldap.conf"),
    *("etc/nslcd.conf", "etc/libnss-ldap.conf", "etc/ipa", "etc/.git", "etc/.hg", "etc/.bzr", "etc/ld.so.preload"),
    # keys of services
    *("etc/letsencrypt", "etc/acme", "etc/dehydrated", "etc/pki/private", "etc/pki/entitlement", "etc/pki/consumer"),
    *("etc/rhsm", "etc/ipsec.d", "etc/ipsec.conf", "etc/swanctl", "etc/strongswan.d", "etc/wireguard", "etc/openvpn"),
    *("etc/tailscale", "etc/cloudflared", "etc/zerotier", "etc/ngrok", "etc/ppp", "etc/wpa_supplicant", "etc/iwd"),
    *("etc/NetworkManager/system-connections", "etc/netplan", "etc/network", "etc/sysconfig/network-scripts"),
    *("etc/corosync", "etc/ceph", "etc/glusterfs", "etc/passwd-s3fs", "etc/iscsi", "etc/nvme", "etc/samba"),
    *("etc/msmtprc", "etc/ssmtp", "etc/aliases", "etc/aliases.db", "etc/email-addresses", "etc/rclone.conf"),
    *("etc/restic", "etc/borgmatic", "etc/apt/auth.conf", "etc/apt/auth.conf.d"),
    # the host's containers, clouds and automation
    *("etc/docker", "etc/containerd", "etc/containers", "etc/crio", "etc/cni", "etc/kubernetes", "etc/rancher"),
    *("etc/cloud", "etc/boto.cfg", "etc/aws", "etc/amazon", "etc/azure", "etc/gcloud", "etc/waagent.conf"),
    *("etc/vault", "etc/vault.d", "etc/consul", "etc/consul.d", "etc/nomad", "etc/nomad.d", "etc/salt", "etc/puppet"),
    *("etc/puppetlabs", "etc/chef", "etc/ansible", "etc/gitlab", "etc/gitlab-runner", "etc/gitea", "etc/jenkins"),
    *("etc/buildkite-agent", "etc/datadog-agent", "etc/newrelic", "etc/newrelic-infra.yml", "etc/telegraf"),
    *("etc/grafana", "etc/prometheus", "etc/rabbitmq", "etc/mysql/debian.cnf"),
    # how the host is put together
    *("etc/fstab", "etc/crypttab", "etc/exports", "etc/exports.d", "etc/crontab", "etc/anacrontab", "etc/rc.local"),
    # containers' layers and volumes, should they come to lie here
    *("var/lib/docker", "var/lib/containerd", "var/lib/containers", "var/lib/kubelet", "var/lib/rancher"),
    # answers to the host's package questions that were passwords
    *("var/cache/debconf/passwords.dat", "var/cache/debconf/passwords.dat-old"),
)
"""Paths that are hidden even if everybody may read them, whether they exist yet or not."""

_PRIVATE = (
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".env", ".netrc", ".pgpass", ".git-credentials", "*.keytab"),
    *("*.kdbx", ".ssh", ".gnupg", ".aws", ".azure", ".kube"),
)

PRIVATE = make_matcher(*_PRIVATE)
"""Base names that are hidden anywhere in /etc, /opt and /usr/local."""

HIDDEN_IN_ETC = make_matcher(
    *_PRIVATE,
    *("ssh_host_*", "ipsec.*secrets*", "*.key", "*.p12", "*.pfx", "*.secret", "*.secrets", "secrets", "secrets.*"),
    *("*credentials*", "*.env", ".env.*", "netrc", "*.ovpn", "auto.*", "cron.allow", "at.allow"),
)
"""Base names that are hidden anywhere in /etc, except in `SHOWN`."""

SHOWN = ("etc/ssl/certs/", "etc/apt/keyrings/", "etc/apt/trusted.gpg.d/", "etc/pki/rpm-gpg/", "etc/pki/ca-trust/")
"""Directories of public certificates and keys, which are shown whatever their files are called."""

CONFIGURATION = make_matcher(
    *("etc/pip.conf", "etc/npmrc", "etc/gitconfig", "etc/wgetrc", "etc/curlrc", "etc/profile", "etc/bash.bashrc"),
    *("etc/bashrc", "etc/zsh/*", "etc/profile.d/*", "etc/default/*", "etc/sysconfig/*", "etc/conf.d/*"),
    *("etc/apt/sources.list", "etc/apt/sources.list.d/*", "etc/apt/apt.conf", "etc/apt/apt.conf.d/*"),
    *("etc/yum.conf", "etc/yum.repos.d/*", "etc/dnf/dnf.conf", "etc/pacman.conf", "etc/uv/*", "etc/xdg/pip/*"),
)
"""Files that sandboxes need and into which people write passwords. They are hidden if they contain one."""

CREDENTIAL = re.compile(
    rb"://[^\s/@:\"']+:[^\s/@\"']+@"
    rb"|^[ \t]*+(?![#;])[^\n=]*(secret|token|passw|api_?key|access_?key|credential|_auth)[^\n=]*=[ \t]*[\"']?[^\s\"'$]",
    re.I | re.M,
)
"""A password in a URL, or a non-empty assignment to a variable with a secret's name."""

NEEDED = (
    *("bin", "sbin", "lib", "lib32", "lib64", "usr/bin", "usr/sbin", "usr/lib", "usr/lib32", "usr/lib64"),
    *("usr/libexec", "usr/share", "usr/include", "usr/local/bin", "usr/local/sbin", "usr/local/lib"),
    *("usr/local/share", "usr/share/ca-certificates", "usr/local/share/ca-certificates", "opt"),
    *("etc/ssl/certs", "etc/pki/ca-trust", "etc/alternatives", "etc/apt", "etc/pam.d", "etc/passwd", "etc/group"),
    *("etc/hosts", "etc/resolv.conf", "etc/nsswitch.conf", "etc/ld.so.cache", "etc/ld.so.conf.d"),
    *("var/cache", "var/lib/dpkg", "var/lib/apt", "var/lib/rpm", "bin/sh", "usr/bin/sh", "usr/bin/env"),
)
"""Paths that every sandbox needs: neither they nor the directories that hold them may be hidden."""

NEEDED_PATTERNS = ("usr/lib/*-linux-*", "usr/lib/python3*/*-packages", "usr/local/lib/python3*/*-packages")
"""More such paths, as glob patterns."""

OWN_FILESYSTEM = ("usr", "etc", "var", "usr/bin", "usr/sbin", "usr/lib", "usr/share", "var/lib", "var/lib/dpkg")
"""Directories that must not be mount points, or sandboxes would lack programs or packages."""
